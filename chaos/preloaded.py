"""Imported by the server process that forks the jobs: loads what a job loads when it begins, which takes seconds."""

from __future__ import annotations

from mirrorlake.gate import Gate

from chaos import jobs

for suite in jobs.SUITES:
    Gate(suite)
