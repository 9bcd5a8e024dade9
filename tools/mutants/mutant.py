"""A mutant: one change of the code that breaks one promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = "lib/mirrorlake"


class CodeMovedError(Exception):
    """Raised when a mutant no longer fits the code it changes."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        name: the promise that is broken, in plain words.
        module: path of the module below lib/mirrorlake.
        before: text that the module has exactly once.
        after: text that takes its place.
        tests: what should notice, as pytest takes it; few and fast.
    """

    name: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied(self, root: Path) -> str:
        """Returns the text of the changed module.

        Raises:
            CodeMovedError: the text to change is not there exactly once, or what comes out does not parse.
        """
        path = root / PACKAGE / self.module
        code = path.read_text() if path.is_file() else ""
        if (count := code.count(self.before)) != 1:
            found = f"has the text to change {count} times, not once" if code else "is not there"
            raise CodeMovedError(
                f"mutant '{self.name}': {PACKAGE}/{self.module} {found}; the code has moved. "
                "Say in tools/mutants/catalog.py where this promise is kept by now"
            )
        changed = code.replace(self.before, self.after)
        try:
            if path.suffix == ".py":
                compile(changed, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise CodeMovedError(
                f"mutant '{self.name}': {PACKAGE}/{self.module} does not parse with the change (line {error.lineno}: "
                f"{error.msg}). Correct it in tools/mutants/catalog.py"
            ) from None
        return changed

    def missing_tests(self, root: Path) -> list[str]:
        """Lists those of its tests that are not there."""
        return [test for test in self.tests if not _is_there(root, test)]


def _is_there(root: Path, test: str) -> bool:
    name, _, function = test.partition("[")[0].partition("::")
    file = root / name
    return file.is_file() and (not function or f"\ndef {function}(" in file.read_text())
