"""The report: the results of runs on one self-contained HTML page."""

# The name of a page in a run folder.
REPORT = "report.html"
