"""Is the answer the model's own? Checks of how answers are written, fed and counted."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.doctor.check import Checked, failed, passed, skipped
from headway.doctor.patient import FEW, SAME, Patient
from headway.tasks import Problems

NO_DECODE = "it needs the logits after a given beginning: Subject(decode=lambda source, written: …, start=TOKEN)"


def greedy(patient: Patient) -> Checked:
    """Token-by-token decoding against the teacher-forced verdict, problem by problem."""
    if patient.answers_with_class:
        return skipped("it answers with a class; there is nothing to decode")
    generate = patient.subject.generate
    if generate is None:
        return skipped("it needs your decoding: Subject(generate=lambda problems: …)")
    problems, logits = patient.problems[:FEW], patient.logits[:FEW]
    written = generate(problems)
    if written.shape != problems.answer.shape:
        return failed(
            f"decoding wrote answers of shape {tuple(written.shape)}, expected {tuple(problems.answer.shape)}",
            "return the tokens of the answer alone",
            shape=list(written.shape),
        )
    by_decoding = patient.subject.correct(one_hot(written, logits.shape[-1]), problems)
    best = logits.topk(2, dim=-1).values
    near = ((best[..., 0] - best[..., 1]) < SAME).any(-1)
    differ = (by_decoding != patient.right[:FEW]) & ~near
    if not differ.any():
        return passed(f"decoding token by token and the one pass agree on {len(problems)} of {len(problems)} problems")
    row = int(differ.nonzero()[0, 0])
    place = int((written[row] != logits[row].argmax(-1)).int().argmax())
    why, remedy = explained(patient, problems, written)
    return failed(
        f"decoding and the one pass disagree on {int(differ.sum())} of {len(problems)} problems, first at token "
        f"{place}: {why}",
        remedy,
        mismatches=int(differ.sum()), checked=len(problems), first_token=place, hypothesis=why,
        example={"written": written[row].tolist(), "right": problems.answer[row].tolist()},
    )  # fmt: skip


def explained(patient: Patient, problems: Problems, written: Tensor) -> tuple[str, str]:
    """The hypothesis under which our own decoding writes exactly what theirs wrote, and how to mend it."""
    decode, start = patient.subject.decode, patient.subject.start
    if decode is None or start is None:
        return "what explains it cannot be tried without Subject(decode=…, start=…)", NO_DECODE
    length, vocabulary = written.shape[1], patient.logits.shape[-1]
    ours = decoded(patient, problems, torch.full_like(problems.answer[:, 0], start))
    if torch.equal(written[:, 0], torch.full_like(written[:, 0], start)) and torch.equal(written[:, 1:], ours[:, :-1]):
        return "the start token is kept in what is decoded, so all is one place late", "drop the first token"
    if torch.equal(written, ours):
        return (
            "decoding is right and the one pass is not: it sees later tokens, or is fed other ones",
            "pass the causal mask in evaluation, and feed the start token and all but the last of the answer",
        )
    common = int(problems.answer[:, 0].mode().values)
    for token in sorted(range(min(vocabulary, 64)), key=lambda each: each != common):
        if torch.equal(written, decoded(patient, problems, torch.full_like(problems.answer[:, 0], token))):
            alone = patient.subject.generate(problems[:1]) if patient.subject.generate is not None else written[:1]
            if token == common and not torch.equal(alone, written[:1]):
                return (
                    f"it begins with {token}, the commonest first token of the batch, and with another alone",
                    f"begin every answer with the start token {start}",
                )
            return f"it begins with token {token}, training with {start}", f"begin every answer with the token {start}"
    return (
        f"none of {min(vocabulary, 64) + 2} hypotheses writes the same {length} tokens",
        "compare the two step by step",
    )


@torch.no_grad()
def decoded(patient: Patient, problems: Problems, start: Tensor) -> Tensor:
    """Our own decoding by the subject's `decode`, from the given first tokens, a prefix at a time."""
    decode = patient.subject.decode
    assert decode is not None
    written = start[:, None]
    for _ in range(problems.answer.shape[1]):
        written = torch.cat((written, decode(problems.source, written)[:, -1:].argmax(-1)), dim=1)
    return written[:, 1:]


def start_token(patient: Patient) -> Checked:
    """Whether the token that begins an answer is also a token of content."""
    start = patient.subject.start
    if start is None:
        return skipped("no answer is begun by a token" if patient.answers_with_class else "give Subject(start=TOKEN)")
    content = int((patient.problems.answer == start).sum())
    if not content:
        return passed(f"token {start} begins every answer and is in none of {len(patient.problems):,}")
    share = float((patient.problems.answer == start).any(1).float().mean())
    return failed(
        f"token {start} begins every answer and stands inside {share:.1%} of them: a beginning cannot be told from it",
        "give the start a token of its own and train again",
        start=start, share=share,
    )  # fmt: skip


def given_digits(patient: Patient) -> Checked:
    """Answer tokens that are fed and never predicted."""
    subject, problems = patient.subject, patient.problems[:FEW]
    if patient.answers_with_class or (subject.generate is None and subject.forced is None):
        return skipped("there is nothing to decode" if patient.answers_with_class else "give Subject(generate=…)")
    if subject.forced is not None:
        missing = problems.answer.shape[1] - subject.forced(problems).shape[1]
        if missing > 0:
            by_value = {} if subject.generate is None else _by_first(problems, subject.generate(problems), missing)
            split = ", ".join(f"{value}: {share:.2f}" for value, share in list(by_value.items())[:3])
            return failed(
                f"the one pass predicts {problems.answer.shape[1] - missing} of {problems.answer.shape[1]} tokens, the "
                f"first {missing} are given" + (f"; decoded right, by the first token: {split}" if split else ""),
                "begin with a start token of its own and predict every token of the answer",
                given=missing, by_value=by_value,
            )  # fmt: skip
    if subject.generate is None:
        return passed(f"the one pass predicts all {problems.answer.shape[1]} tokens")
    other = problems.answer.roll(1, dims=0)
    plain = subject.generate(problems)
    swapped = subject.generate(Problems(problems.source, other, problems.scored))
    moved = [float((plain[:, at] != swapped[:, at]).float().mean()) for at in range(plain.shape[1])]
    if not any(moved):
        return passed(f"what is decoded does not depend on the right answers ({len(problems)} exchanged)")
    fed = [at for at, share in enumerate(moved) if share and bool((swapped[:, at] == other[:, at]).all())]
    return failed(
        f"decoding changes with the right answers that it is handed ({max(moved):.0%} of them): token "
        f"{fed[0] if fed else moved.index(max(moved))} is given, not predicted",
        "decode from the source alone; count every token of the answer",
        given=fed, moved=moved,
    )  # fmt: skip


def _by_first(problems: Problems, written: Tensor, tokens: int) -> dict[str, float]:
    """How many answers are decoded right, by the tokens that were given."""
    right = (written[:, -problems.answer.shape[1] :] == problems.answer).all(1)
    keys = [" ".join(map(str, row)) for row in problems.answer[:, :tokens].tolist()]
    shares = {key: [bool(right[row]) for row, own in enumerate(keys) if own == key] for key in sorted(set(keys))}
    return {key: sum(each) / len(each) for key, each in shares.items()}


def metric(patient: Patient) -> Checked:
    """Whether the reported accuracy is over whole answers."""
    score = patient.subject.score
    if score is None:
        return skipped("it needs the accuracy as you report it: Subject(score=lambda problems: …)")
    problems, said = patient.problems, patient.logits.argmax(-1)
    reported, exact = float(score(problems)), float(patient.right.float().mean())
    if abs(reported - exact) <= 1 / len(problems):
        return passed(f"the reported {reported:.4f} is the share of whole answers that are right")
    same = said == problems.answer
    others = {"over tokens": float(same.float().mean())}
    others |= {f"over token {at} alone": float(same[:, at].float().mean()) for at in range(same.shape[1])}
    for token in sorted({0, patient.subject.pad} - {None}):  # pyright: ignore[reportArgumentType]
        counted = problems.answer != token
        others[f"over tokens other than {token}"] = float(same[counted].float().mean()) if counted.any() else 0.0
    named = [name for name, value in others.items() if abs(value - reported) <= 1 / len(problems)]
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    return failed(
        f"reported {reported:.4f}, but {exact:.4f} of the whole answers are right: {what}",
        "count an answer as right when all of its tokens are",
        reported=reported, exact_match=exact, candidates=others,
    )  # fmt: skip


def causality(patient: Patient) -> Checked:
    """Whether a later decoder token changes an earlier output."""
    if patient.answers_with_class:
        return skipped("it answers with a class; there are no later tokens")
    decode, problems = patient.subject.decode, patient.problems[:FEW]
    if decode is None or patient.subject.start is None:
        return skipped(NO_DECODE)
    written = patient.written(problems)
    if written.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    with torch.no_grad():
        before = decode(problems.source, written)
        worst = 0.0
        for at in range(1, written.shape[1]):
            changed = written.clone()
            changed[:, at:] = changed[:, at:].roll(1, dims=0)
            worst = max(worst, float((decode(problems.source, changed)[:, :at] - before[:, :at]).abs().max()))
    if worst <= SAME:
        return passed(f"exchanging later tokens moves no earlier logit by more than {worst:.1g}", moved=worst)
    return failed(
        f"exchanging later tokens moves earlier logits by up to {worst:.2g}: it sees the answer that it is to predict",
        "pass the causal mask in evaluation as in training",
        moved=worst,
    )


def padding(patient: Patient) -> Checked:
    """Whether adding padding changes an answer."""
    pad = patient.subject.pad
    if pad is None:
        return skipped("no padding token was given; Subject(pad=TOKEN) where sequences are padded")
    problems = patient.problems[:FEW]
    more = torch.full_like(problems.source[:, :4], pad)
    padded = Problems(torch.cat((problems.source, more), dim=1), problems.answer, problems.scored)
    told, plain = patient.told(padded), patient.logits[:FEW]
    moved = float((told - plain).abs().max())
    changed = float((told.argmax(-1) != plain.argmax(-1)).any(-1).float().mean())
    if moved <= SAME:
        return passed(f"four tokens of padding move no logit by more than {moved:.1g}", moved=moved)
    return failed(
        f"four tokens of padding move logits by up to {moved:.2g} and change {changed:.1%} of the answers",
        "mask padded keys in every attention, in evaluation too",
        moved=moved, changed=changed,
    )  # fmt: skip


def evaluation_mode(patient: Patient) -> Checked:
    """Whether two evaluations agree, and whether an answer depends on who else is in its batch."""
    problems = patient.problems[:FEW]
    first, again = patient.told(problems), patient.told(problems)
    twice = float((first - again).abs().max())
    if twice > SAME:
        return failed(
            f"the same problems twice give logits that differ by {twice:.2g}: dropout or another draw is on",
            "call model.eval() before evaluating",
            twice=twice,
        )
    alone = torch.cat([patient.told(problems[row : row + 1]) for row in range(20)])
    turned = patient.told(problems[torch.arange(len(problems) - 1, -1, -1)]).flip(0)
    company = max(_largest(first[:20] - alone), _largest(first - turned))
    if company > SAME:
        return failed(
            f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}",
            "use nothing that is computed over the batch (batch normalisation, a start token by majority)",
            company=company,
        )
    generate = patient.subject.generate
    if generate is not None and not patient.answers_with_class:
        together, single = generate(problems[:20]), torch.cat([generate(problems[row : row + 1]) for row in range(20)])
        if not torch.equal(together, single):
            changed = int((together != single).any(1).sum())
            return failed(
                f"decoded alone, {changed} of 20 answers are other than in a batch: something is taken from the batch",
                "begin every answer with the same start token, whatever the batch",
                changed=changed,
            )
    return passed(f"twice, alone and in another order the logits agree to {max(twice, company):.1g}", moved=company)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    return torch.nn.functional.one_hot(tokens.clamp(0, vocabulary - 1), vocabulary).float()


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())
