"""Checks files of any origin against exact engine releases. `check` is the entry point."""

from .driver import CheckOptions, Planner, check
from .report import Checked, Report

__all__ = ["CheckOptions", "Checked", "Planner", "Report", "check"]
