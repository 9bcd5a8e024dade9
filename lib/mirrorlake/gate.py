"""The gate: Great Expectations suites over small pandas frames, evaluated before a commit.

The suites are JSON files in expectations/. Great Expectations drops expectations that it doesn't know, and an
empty suite succeeds. A suite is therefore loaded only as a whole, and a result counts only if every expectation
of the file was evaluated.

A compiled suite (`compiled_suite.py`) evaluates in a fifth of the time. It decides only that a frame is without any
fault. In all other cases, `ValidationDefinition.run` evaluates the same frame, and decides.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorlake.compiled_suite import CompiledSuite
from mirrorlake.errors import ConfigurationError, GateError, first_line
from mirrorlake.log import event
from mirrorlake.metrics import Metrics, of_process

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

SHOWN_UNEXPECTED = 5
OBSERVED = ("observed_value", "element_count", "unexpected_count")


@dataclass(frozen=True)
class ExpectationResult:
    """One row of the table expectation_results.

    `observed` and `unexpected` are JSON; `expectation` is type and arguments.
    """

    suite: str
    subject: str
    expectation: str
    success: bool
    observed: str
    unexpected: str
    evaluated_at: datetime
    cycle_id: str


class Gate:
    """One suite, loaded and compiled once, and evaluated many times.

    Args:
        path: the suite's JSON file.
        metrics: the metrics that count evaluations; those of the process if None.

    Raises:
        ConfigurationError: the file can't be read or parsed, is empty, or holds an unknown expectation.
    """

    def __init__(self, path: str | Path, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or of_process()
        specification = _read(Path(path))
        gx = _great_expectations()
        try:
            suite = gx.ExpectationSuite(**specification)
        except Exception as error:  # any error of its validation means that the file is wrong
            raise ConfigurationError(f"expectations {path} do not load: {error}") from None
        self.name: str = specification["name"]
        self.expectations = len(specification["expectations"])
        if len(suite.expectations) != self.expectations:
            known = [_describe(expectation.configuration.to_json_dict()) for expectation in suite.expectations]
            dropped = [_describe(wanted) for wanted in specification["expectations"] if _describe(wanted) not in known]
            raise ConfigurationError(
                f"expectations {path}: Great Expectations does not know {'; '.join(dropped)}. Correct these "
                "expectations: a suite is only evaluated as a whole"
            )
        self._descriptions = [_describe(one.to_json_dict()) for one in suite.expectation_configurations]
        self._compiled = self._compile(suite)
        context = gx.get_context(mode="ephemeral")
        self._kept = context.validation_results_store
        context.variables.progress_bars = {"globally": False}
        batch = (
            context.data_sources.add_pandas(self.name)
            .add_dataframe_asset("frame")
            .add_batch_definition_whole_dataframe("whole")
        )
        self._validation = context.validation_definitions.add(
            gx.ValidationDefinition(name=self.name, data=batch, suite=context.suites.add(suite))
        )

    def _compile(self, suite: Any) -> CompiledSuite | None:
        try:
            return CompiledSuite(suite.expectation_configurations)
        except Exception as error:  # of Great Expectations, which evaluates the suite without it, too
            log.info(event("suite_not_compiled", suite=self.name, detail=first_line(error)))
            return None

    def evaluate(self, frame: pd.DataFrame, subject: str, cycle_id: str) -> list[ExpectationResult]:
        """Evaluates the suite; returns one result for each expectation of the file.

        Args:
            frame: the rows to check.
            subject: the flow that the rows are about.
            cycle_id: the id of the micro-batch or cycle.

        Raises:
            GateError: not every expectation was evaluated.
        """
        self._metrics.gate_evaluations.labels(subject, self.name).inc()
        failures, passed = self._metrics.gate_failures.labels(subject, self.name), False
        try:
            results = self._evaluate(frame, subject, cycle_id)
            passed = all(result.success for result in results)
        finally:
            if not passed:
                failures.inc()
        return results

    def _evaluate(self, frame: pd.DataFrame, subject: str, cycle_id: str) -> list[ExpectationResult]:
        failure: Exception | None = None
        results: list[ExpectationResult] = []
        try:
            results = self._found_clean(frame, subject, cycle_id)
        except Exception as error:  # a column is missing, say: the validation tells
            failure = error
        results = results or self._found_by_validation(frame, subject, cycle_id)
        if failure is not None and all(result.success for result in results):
            log.info(event("suite_not_compiled", suite=self.name, detail=first_line(failure)))
            self._compiled = None  # it would fail each time
        if len(results) != self.expectations:
            raise GateError(
                f"{subject}: {len(results)} of the {self.expectations} expectations of suite {self.name} were "
                "evaluated. Nothing is committed unless all expectations are evaluated"
            )
        return results

    def _found_clean(self, frame: pd.DataFrame, subject: str, cycle_id: str) -> list[ExpectationResult]:
        """Evaluates the compiled suite; returns nothing unless every expectation finds the frame without any fault."""
        if self._compiled is None:
            return []
        from great_expectations.util import convert_to_json_serializable

        judgements = self._compiled.judge(frame)
        if not all(judgement.is_clean for judgement in judgements):
            return []
        at = _now()
        return [
            ExpectationResult(
                suite=self.name,
                subject=subject,
                expectation=description,
                success=True,
                observed=json.dumps(
                    convert_to_json_serializable(
                        {key: judgement.details[key] for key in OBSERVED if key in judgement.details}
                    )
                ),
                unexpected="[]",
                evaluated_at=at,
                cycle_id=cycle_id,
            )
            for description, judgement in zip(self._descriptions, judgements, strict=True)
        ]

    def _found_by_validation(self, frame: pd.DataFrame, subject: str, cycle_id: str) -> list[ExpectationResult]:
        """Evaluates the suite by Great Expectations' own run, with examples of what is unexpected."""
        outcome = self._validation.run(
            batch_parameters={"dataframe": frame},
            result_format={"result_format": "BASIC", "partial_unexpected_count": SHOWN_UNEXPECTED},
        )
        for key in self._kept.list_keys():  # otherwise 14 kB would stay for each evaluation
            self._kept.remove_key(key)
        at, results = _now(), []
        for result in outcome.results:
            found = result.to_json_dict()
            details = found["result"]
            raised = found.get("exception_info") or {}
            message = raised.get("exception_message") or next(
                (value.get("exception_message") for value in raised.values() if isinstance(value, dict)), None
            )
            results.append(
                ExpectationResult(
                    suite=self.name,
                    subject=subject,
                    expectation=_describe(found["expectation_config"]),
                    success=bool(result.success),
                    observed=json.dumps(
                        {key: details[key] for key in OBSERVED if key in details}
                        | ({"error": message} if message else {})
                    ),
                    unexpected=json.dumps(details.get("partial_unexpected_list", [])),
                    evaluated_at=at,
                    cycle_id=cycle_id,
                )
            )
        return results


def require(results: list[ExpectationResult], what: str, consequence: str) -> None:
    """Raises an error unless all expectations succeeded; `consequence` names the action that was taken then.

    Raises:
        GateError: an expectation failed; the message names each one and its findings.
    """
    failed = [result for result in results if not result.success]
    if failed or not results:
        reasons = "; ".join(
            f"{result.expectation}: {result.unexpected if result.unexpected != '[]' else result.observed}"
            for result in failed
        )
        raise GateError(f"{what}: {len(failed)} of {len(results)} expectations failed; {consequence}. {reasons}")


def _read(path: Path) -> dict[str, Any]:
    try:
        specification = json.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"expectations {path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"expectations {path} are not JSON: {error}") from None
    if (
        not isinstance(specification, dict)
        or not specification.get("name")
        or not isinstance(specification.get("expectations"), list)
    ):
        raise ConfigurationError(f"expectations {path} are not a suite: an object with name and expectations")
    if not specification["expectations"]:
        raise ConfigurationError(
            f"expectations {path} are empty, and an empty suite would pass everything. Add an expectation"
        )
    return specification


def _describe(expectation: dict[str, Any]) -> str:
    """Describes an expectation by type and arguments on one line, the same before and after Great Expectations."""
    arguments = {name: value for name, value in expectation["kwargs"].items() if name != "batch_id"}
    described = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(arguments.items()))
    return f"{expectation['type']}({described})"


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def _great_expectations() -> Any:
    """Imports the package late, because that takes seconds, and turns off its analytics and log lines."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    import great_expectations

    return great_expectations
