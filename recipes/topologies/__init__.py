"""Machines that plans can be priced for, as data: one TOML file each, every number with its source."""
