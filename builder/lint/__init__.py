"""Checks files of any origin against exact engine releases. `check` is the entry point."""

from .driver import CheckOptions, Planner, check
from .model import Checked
from .report import Report

__all__ = ["CheckOptions", "Checked", "Planner", "Report", "check"]
