# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The figure of `benchmarks.policies`: KL against bytes, a panel per text, a line per policy.

    python -m benchmarks.policies_plot DOCUMENT.json policies.png

Colours are Okabe and Ito's, told apart by every common colour vision; markers and dashes differ too.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(document: dict[str, Any], path: Path) -> None:
    """Draws a document of `benchmarks.policies` into a PNG."""
    texts = document["texts"]
    rows = [row for text in texts.values() for row in text["results"] if "error" not in row]
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure = Figure(figsize=(5.2 * len(texts) + 2.6, 5.2), layout="constrained")
    panels = figure.subplots(1, len(texts), sharey=True, squeeze=False)[0]
    for panel, (title, text) in zip(panels, texts.items(), strict=True):
        for i, name in enumerate(names):
            line = [row for row in text["results"] if row["name"] == name and "error" not in row]
            line.sort(key=lambda row: row["ratio_allocated"])
            ours = any(row["config"]["policy"] == "qevict" for row in line)
            panel.plot(
                [100 * row["ratio_allocated"] for row in line],
                [row["kl"] for row in line],
                color=COLORS[i % len(COLORS)],
                marker=MARKERS[(i + i // len(COLORS)) % len(MARKERS)],
                linestyle="-" if ours else ("--", ":")[i // len(COLORS) % 2],
                linewidth=2.2 if ours else 1.2,
                markersize=6,
                label=f"qevict {name}" if ours else name,
            )
        panel.set_title(title, fontsize="medium")
        panel.set(xscale="log", yscale="log", xlabel="KV cache, % of the full cache's bytes (real arrays)")
        panel.set_xticks([5, 10, 20, 30], ["5", "10", "20", "30"])
        panel.minorticks_off()
        panel.grid(True, alpha=0.25)
    panels[0].set_ylabel("mean KL(full || compressed), nats")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    figure.suptitle(
        f"{document['model']}, {document['prefill']} + {document['steps']} tokens, {len(document['offsets'])} offsets"
    )
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text().splitlines()[-1]), Path(sys.argv[2]))
