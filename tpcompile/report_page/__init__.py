"""report.html: a plan as one page that needs nothing but a browser. `page.report_page` makes it of a `PlanSummary`."""
