"""Update time with the top-p 0.9 filter over update time without it, on the same rollouts.

Dropped groups are removed, so the time should follow the kept share of tokens; masking them only
would give 1. Prints the ratio last; at most the kept share plus 0.12 is expected.

    python benchmarks/filter_speedup.py --json
"""

import argparse
import json
import tempfile
from pathlib import Path

from update_batch import Arm, alternate


def main() -> None:
    """Measure both arms side by side and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--loss-type", default="grpo")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()

    from ragen2_cli import GroupFilter, SnrGRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        without, with_filter = (
            Arm(
                SnrGRPOTrainer,
                Path(folder),
                loss_type=options.loss_type,
                beta=options.beta,
                group_filter=chosen,
            )
            for chosen in (None, GroupFilter("top-p", 0.9))
        )
        alternate([without, with_filter], options.rounds)
    kept = len(with_filter.trainer.last_selection.kept)
    share = with_filter.kept_share_of_tokens()
    ratio = with_filter.best() / without.best()
    result = {
        "without_seconds": without.best(),
        "with_seconds": with_filter.best(),
        "kept_groups": kept,
        "kept_share_of_tokens": share,
        "ratio": ratio,
        "expected": share + 0.12,
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"update {without.best():.2f} s without, {with_filter.best():.2f} s with the filter;"
        f" {kept} of 8 groups kept, {share:.2f} of the tokens; at most {share + 0.12:.2f} expected"
    )
    print(f"{ratio:.2f}")


if __name__ == "__main__":
    main()
