"""The positions that an operator passes in: JSON, a JSON file, the checkpoint directory of a Spark query, or a time."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mirrorlake.errors import ConfigurationError
from mirrorlake.parameters import resolve
from mirrorlake.translation.positions import SAID, Translation, listed, parse, time_ms
from mirrorlake.translation.spark_checkpoint import SparkCheckpoint, to_json
from mirrorlake.translation.translator import Translator

FORMATS = ("table", "json")  # of the output of commands


@dataclass(frozen=True)
class ExternalPositions:
    """The parameters of the notebook.

    Attributes:
        positions: JSON `{"topic": {"0": 123}}`, the path of a file with such JSON, or the checkpoint directory of a
            streaming query.
        at: a time; all partitions of the flow are translated at this time. Excludes `positions`.
        output: file to write, or directory for a checkpoint; empty to write nothing.
        allow: statuses besides exact that are accepted, separated by commas.
        sources: numbers of the query's sources to translate; empty for all Kafka sources.
    """

    positions: str = ""
    at: str = ""
    output: str = ""
    allow: str = ""
    sources: str = ""

    def __post_init__(self) -> None:
        if bool(self.positions) == bool(self.at):
            raise ConfigurationError("exactly one of the parameters positions and at must be given")
        unknown = sorted({*self.allowed} - SAID.keys())
        if unknown:
            raise ConfigurationError(
                f"parameter allow names {unknown[0]}; allowed are {', '.join(SAID)}, separated by commas, or empty"
            )
        if not all(number.strip().isdigit() for number in self.sources.split(",") if self.sources):
            raise ConfigurationError(
                f"parameter sources is '{self.sources}'; allowed are numbers from 0 up, separated by commas, or empty"
            )
        if self.output and Path(self.output).exists():
            raise ConfigurationError(f"output {self.output} exists already: name another place, or remove it")

    @classmethod
    def resolve(cls, namespace: Mapping[str, Any]) -> ExternalPositions:
        """Reads the parameters from the globals of the notebook."""
        # For commands, MIRRORLAKE_OUTPUT is a format. It would become the name of a file here.
        environment = {
            name: value for name, value in os.environ.items() if name != "MIRRORLAKE_OUTPUT" or value not in FORMATS
        }
        return cls(**resolve(namespace, {field.name: "" for field in fields(cls)}, environment))

    @property
    def allowed(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.allow.split(",") if name.strip())

    def translate(self, translator: Translator) -> Translation:
        """Translates the positions and writes the result to the output.

        Raises:
            TargetError: a position isn't exact, and its status isn't allowed; nothing was written.
            ConfigurationError: the positions or the output are invalid.
        """
        if self.at:
            return self._written(translator.translate(translator.at(time_ms(self.at))))
        if self.positions.lstrip().startswith("{"):
            return self._written(translator.translate(listed(parse(self.positions))))
        path = Path(self.positions)
        if path.is_file():
            return self._written(translator.translate(listed(parse(path.read_text()))))
        if not path.is_dir():
            raise ConfigurationError(f"parameter positions is neither JSON nor a file or directory: {self.positions}")
        checkpoint = SparkCheckpoint.read(path, [int(number) for number in self.sources.split(",") if number])
        translation = translator.translate(checkpoint.positions).require(self.allowed, checkpoint.needed)
        if self.output:
            checkpoint.write(translation, Path(self.output), self.allowed)
        return translation

    def _written(self, translation: Translation) -> Translation:
        translation.require(self.allowed)
        if self.output:
            output = Path(self.output)
            draft = output.with_name(f".{output.name}-{uuid.uuid4().hex[:8]}")
            draft.write_text(to_json(translation.offsets()) + "\n")
            draft.rename(output)
        return translation
