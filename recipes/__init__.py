"""Named sets of wishes for the planner, as data: one TOML file each."""
