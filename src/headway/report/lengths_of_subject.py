"""Draws a length study of a user's model, and shows it on the page as the study of one entry with one run."""

from pathlib import Path

from headway.report.figures import GREEN, GREY, ORANGE, panels, save_figure
from headway.report.studies import LengthsFile, RemarkJson, SubjectLengthsFile, SubjectRowJson

COLOURS = ("#0072B2", ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", (0, (5, 2)), (0, (1, 1)), "-.")
KIND = "lengths-of-subject"


def as_lengths_file(study: SubjectLengthsFile) -> LengthsFile:
    """Returns the study as one of Headway's, whose only entry is the model; what cannot run has no accuracy."""
    own = {"positions": study["subject"], "index": "sequential", "pooling": None}
    rows = [row for row in study["rows"] if row["accuracy"] is not None]
    return {  # pyright: ignore[reportReturnType]
        "task": study["task"],
        "track": "",
        "subject": study["subject"],
        "asked": study["asked"],
        "train_lengths": study["train_lengths"],
        "examples": study["examples"],
        "rows": [{**row, **own, "seed": 0} for row in rows],
        "reach": [
            {**row, **own, "by_seed": {"0": row["reach"]}, "median": row["reach"], "worst": row["reach"]}
            for row in study["reach"]
        ],
        "converged": [{**own, "seed": 0, **{key: study[key] for key in ("converged", "in_range", "interval")}}],
        "diagnosis": [{**each, **own, "seed": 0} for each in study["diagnosis"]],
        "signals": [],
        "findings": study["findings"],
        "withheld": study["withheld"],
        "level": study["level"],
        "remarks": _remarks(study["rows"]),
    }


def _remarks(rows: list[SubjectRowJson]) -> list[RemarkJson]:
    """Says where a model cannot run, and where its answers hardly vary; equal remarks on a probe are one."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["cannot_run"] is not None:
            found.setdefault((row["probe"], f"cannot run: {row['cannot_run']}"), []).append(row["length"])
        elif row["nearly_constant"] and row["answers"]:
            first = row["answers"][0]
            given = "every answer is" if row["constant"] else f"{first['given']:.1%} of the answers are"
            remark = f"{given} {first['answer']}, which is right for {first['right']:.1%}"
            found.setdefault((row["probe"], remark), []).append(row["length"])
    return [{"probe": probe, "lengths": lengths, "remark": remark} for (probe, remark), lengths in found.items()]


def draw_subject(study: SubjectLengthsFile, out: Path) -> list[Path]:
    """Draws accuracy against length, with the interval of each point; rings are constant answers, crosses lengths at
    which the model cannot run."""
    figure, (axes,) = panels(1, height=4.4, width=6.4)
    shortest, longest = study["train_lengths"]
    for number, probe in enumerate(dict.fromkeys(row["probe"] for row in study["rows"])):
        rows = [row for row in study["rows"] if row["probe"] == probe]
        run = [row for row in rows if row["accuracy"] is not None and row["interval"] is not None]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        lengths, heights = [row["length"] for row in run], [row["accuracy"] or 0.0 for row in run]
        axes.plot(lengths, heights, color=colour, linestyle=style, marker="o", markersize=3.5, label=probe)
        ends = [[(row["interval"] or (0, 0))[end] or 0.0 for row in run] for end in (0, 1)]
        axes.fill_between(lengths, *ends, color=colour, alpha=0.15, linewidth=0)
        flat = [row for row in run if row["nearly_constant"]]
        axes.plot([row["length"] for row in flat], [row["accuracy"] for row in flat], "o", color=colour, markersize=10,
                  fillstyle="none")  # fmt: skip
        stopped = [row["length"] for row in rows if row["cannot_run"] is not None]
        axes.plot(stopped, [0.0] * len(stopped), "x", color=colour, markersize=7)
    first = next(iter(study["rows"]))["probe"]
    chances = [(row["length"], row["chance"]) for row in study["rows"] if row["probe"] == first and row["chance"]]
    if chances:
        axes.plot(*zip(*chances, strict=True), color=GREY, linestyle="--", linewidth=0.9, label="best constant answer")
    axes.axvspan(shortest, longest, color=GREY, alpha=0.2, linewidth=0, label="trained on")
    if any(row["nearly_constant"] for row in study["rows"]):
        axes.plot([], [], "o", color=GREY, markersize=10, fillstyle="none", label="one answer to (nearly) all")
    if any(row["cannot_run"] is not None for row in study["rows"]):
        axes.plot([], [], "x", color=GREY, markersize=7, label="cannot run")
    ticks = sorted({row["length"] for row in study["rows"]})
    ticks = ticks if len(ticks) <= 8 else ticks[:: len(ticks) // 8 + 1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set(ylim=(-0.05, 1.06), xlabel="length", ylabel="accuracy, with 95% interval")
    axes.set_title(f"{study['subject']}\n{_verdict(study)}".replace("$", r"\$"), fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, out / "lengths-curves")


def _verdict(study: SubjectLengthsFile) -> str:
    if study["withheld"]:
        return f"withheld: {study['withheld'][0]['check']}"
    if not study["converged"]:
        return "did not learn in range"
    first = study["reach"][0]
    if failed := first["fails_in_range"]:
        return f"not held in range: {', '.join(failed)}"
    return f"reach {first['reaches_all'] or 0:,}"
