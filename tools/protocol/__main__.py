"""`make protocol`: explores the model in every scope; prints what each rule prevents, as the shortest history."""

from __future__ import annotations

import time

from tools.protocol.explore import ViolationError, explore
from tools.protocol.scopes import BREAKS, SCOPES, without


def main() -> None:
    for name, scope in SCOPES.items():
        began = time.process_time()
        found = explore(scope)
        seconds = time.process_time() - began
        print(
            f"{name}: {found.worlds:,} worlds, {found.steps:,} steps, {seconds:.1f} s; all invariants hold", flush=True
        )
    for rule in BREAKS:
        try:
            explore(without(rule))
        except ViolationError as violation:
            print(f"\nWithout the rule '{rule}':\n  {violation}", flush=True)
        else:
            raise SystemExit(f"the model without the rule '{rule}' breaks no invariant")


if __name__ == "__main__":
    main()
