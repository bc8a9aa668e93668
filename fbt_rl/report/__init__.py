"""The report: a pure function of a run's finished folders."""

from fbt_rl.report.write import ReportError, pairs_of, write_report

__all__ = ["ReportError", "pairs_of", "write_report"]
