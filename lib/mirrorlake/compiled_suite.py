"""A suite that is prepared once: Great Expectations' own metrics and expectations, without building them anew.

`ValidationDefinition.run` builds a batch, each configuration and the graph of metrics in every run, which takes nearly
all of its time. None of them depends on the frame. A compiled suite keeps them. An evaluation then does what depends on
the frame: it computes each metric, and each expectation judges its metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FRAME = "frame"  # the id of the batch; each evaluation replaces its contents
# Expectations count what is unexpected, and collect no examples of it.
COMPUTED, TOLD = {"result_format": "BOOLEAN_ONLY"}, {"result_format": "BASIC"}
PARAMETER = "$PARAMETER"


@dataclass(frozen=True)
class Judgement:
    """The verdict of one expectation.

    Attributes:
        is_clean: the expectation succeeds, and no single row is unexpected.
        details: Great Expectations' details, without examples.
    """

    is_clean: bool
    details: Mapping[str, Any]


class CompiledSuite:
    """The metrics and expectations of a suite, in the order of their evaluation.

    Args:
        configurations: configurations of the expectations, by Great Expectations.

    Raises:
        Exception: an expectation can't be prepared without a frame.
    """

    def __init__(self, configurations: Iterable[Any]) -> None:
        from great_expectations.validator.validation_graph import ValidationGraph

        self._engine = _engine()
        self._expectations = []
        graph = ValidationGraph(self._engine)
        for configuration in configurations:
            if PARAMETER in json.dumps(configuration.kwargs, default=str):
                raise ValueError(f"{configuration.type} has a parameter, which has a value in a run only")
            expectation = type(configuration)(
                type=configuration.type, kwargs={**configuration.kwargs, "batch_id": FRAME}
            ).to_domain_obj()
            needed = expectation.get_validation_dependencies(
                execution_engine=self._engine, runtime_configuration=dict(COMPUTED)
            )
            for metric in needed.get_metric_configurations():
                graph.build_metric_dependency_graph(metric, dict(COMPUTED))
            self._expectations.append((expectation, needed.metric_configurations))
        self._levels = _levels(graph.edges)

    def judge(self, frame: pd.DataFrame) -> list[Judgement]:
        """Evaluates every expectation on the frame, in the order of the configurations.

        Raises:
            Exception: a metric can't be computed, or an expectation can't be evaluated.
        """
        engine, metrics = self._engine, dict[Any, Any]()
        engine.load_batch_data(FRAME, frame)
        for level in self._levels:
            metrics.update(engine.resolve_metrics(level, metrics=metrics, runtime_configuration=dict(COMPUTED)))
        return [
            _judgement(
                expectation._validate(
                    metrics={name: metrics[metric.id] for name, metric in needed.items()},
                    runtime_configuration=dict(TOLD),
                    execution_engine=engine,
                )
            )
            for expectation, needed in self._expectations
        ]


def _engine() -> Any:
    """Returns an engine that selects the rows of a domain once for each frame, not once for each metric."""
    from great_expectations.execution_engine import PandasExecutionEngine

    class FrameEngine(PandasExecutionEngine):
        def __init__(self) -> None:
            super().__init__(caching=False)
            self._selected: dict[str, pd.DataFrame] = {}

        def load_batch_data(self, batch_id: str, batch_data: Any) -> None:
            self._selected.clear()
            super().load_batch_data(batch_id, batch_data)

        def get_domain_records(self, domain_kwargs: dict[str, Any]) -> pd.DataFrame:
            domain = json.dumps(domain_kwargs, sort_keys=True, default=repr)
            if domain not in self._selected:
                self._selected[domain] = super().get_domain_records(domain_kwargs)
            return self._selected[domain]

    return FrameEngine()


def _judgement(outcome: Any) -> Judgement:
    success, details = (
        (outcome["success"], outcome.get("result")) if isinstance(outcome, dict) else (outcome.success, outcome.result)
    )
    details = details or {}
    return Judgement(bool(success) and not details.get("unexpected_count"), details)


def _levels(edges: Iterable[Any]) -> list[list[Any]]:
    """Orders metrics in levels, each of which needs only earlier ones."""
    metrics, needs = dict[Any, Any](), dict[Any, set[Any]]()
    for edge in edges:
        metrics.setdefault(edge.left.id, edge.left)
        needs.setdefault(edge.left.id, set())
        if edge.right is not None:
            needs[edge.left.id].add(edge.right.id)
    levels, done = list[list[Any]](), set[Any]()
    while len(done) < len(metrics):
        ready = [name for name in metrics if name not in done and needs[name] <= done]
        if not ready:
            raise ValueError("metrics need each other")
        levels.append([metrics[name] for name in ready])
        done.update(ready)
    return levels
