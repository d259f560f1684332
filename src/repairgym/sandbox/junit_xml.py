"""Reads a JUnit XML report: what most test runners of other languages can write.

Makes one result per test case. Invariants: the report is untrusted, so it is bounded, has no document type (entities
can grow without end) and its nesting is not followed; of cases with the same id the worst counts.
"""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

from repairgym.records import TestOutcome, TestResult
from repairgym.sandbox.runs import merge

MAX_REPORT_BYTES = 16 << 20
_OUTCOMES = {"failure": TestOutcome.FAILED, "error": TestOutcome.ERROR, "skipped": TestOutcome.SKIPPED}


def parse_junit_xml(content: bytes) -> dict[str, TestResult]:
    """Results by id: ``classname::name``, or ``name`` where there is no class name.

    Raises:
        ValueError: too large, no XML, or with a document type.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise ValueError(f"the report has {len(content)} bytes, at most {MAX_REPORT_BYTES} are read")
    reader = _Reader()
    try:
        reader.parse(content)
    except expat.ExpatError as error:
        raise ValueError(f"the report is no XML: {error}") from error
    return {test_id: merge(results) for test_id, results in reader.results.items()}


class _Reader:
    """Collects test cases from the events of the parser."""

    def __init__(self) -> None:
        self.results: dict[str, list[TestResult]] = {}
        self._case: tuple[str, float] | None = None
        self._found: list[TestResult] = []

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse
        parser.Parse(content, True)

    def _refuse(self, *_: Any) -> None:
        raise ValueError("the report has a document type; expected plain JUnit XML")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "testcase":
            class_name, own = attributes.get("classname", ""), attributes.get("name", "")
            self._case = (f"{class_name}::{own}" if class_name else own, _seconds(attributes.get("time", "")))
            self._found = []
        elif self._case is not None and name in _OUTCOMES:
            lines = attributes.get("message", attributes.get("type", "")).strip().splitlines()
            self._found.append(TestResult(outcome=_OUTCOMES[name], message=lines[0][:200] if lines else ""))

    def _end(self, name: str) -> None:
        if name == "testcase" and self._case is not None:
            test_id, duration_s = self._case
            result = merge(self._found or [TestResult(outcome=TestOutcome.PASSED)])
            self.results.setdefault(test_id, []).append(result.model_copy(update={"duration_s": duration_s}))
            self._case = None


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text.replace(",", "")))
    except ValueError:
        return 0.0
