// The first screen: each question answered in plain words, with a small picture and its evidence one click away.
import { Chart } from "./chart";
import { content, type Headline } from "./content";
import { RecallPicture } from "./language";
import { Details, Findings } from "./evidence";
import { learningOf } from "./learning";
import { firstProbe, linesOf } from "./lengths";
import { spoken } from "./names";
import { NeededPart } from "./needed";
import { Counts } from "./seeds";

function Picture({ about }: { about: Headline["about"] }) {
  if (about === "heads") return <NeededPart />;
  if (about === "seeds") return content.seeds.length > 1 ? <Counts small /> : null;
  if (about === "language") return <RecallPicture study={content.languages[0]!} />;
  if (about === "lab") {
    const [run] = learningOf("try");
    return run ? <Chart bare label={`how it learned, ${run.run}`} x="training step" y="accuracy" lines={[{ name: "whole answers right, training batch", points: run.training }]} /> : null;
  }
  const study = content.lengths[0], probe = study && firstProbe(study);
  if (!study || !probe) return null;
  return <Chart bare log label={`how far it works, ${study.task}, ${probe}`} x={`length (trained: shaded)`} y="accuracy" shaded={study.train_lengths} lines={linesOf(study, probe)} />;
}

const PLACES: Record<Headline["about"], string> = { lab: "try", heads: "heads", seeds: "heads", length: "length", language: "length" };
const ORDER: Headline["about"][] = ["heads", "seeds", "length", "language", "lab"]; // the two questions first

function Answer({ each }: { each: Headline }) {
  return (
    <article class={each.withheld ? "headline withheld" : "headline"}>
      <small>{each.question}</small>
      {each.withheld ? <strong>No answer: a check failed</strong> : <strong>{spoken(each.answer)}</strong>}
      {each.withheld ? <p>Withheld: {spoken(each.withheld)}.</p> : <><div class="picture"><Picture about={each.about} /></div><p>{spoken(each.rest)}</p></>}
      <details><summary>evidence</summary><Details of={each.details} /></details>
      <button class="further" onClick={() => document.getElementById(PLACES[each.about])?.scrollIntoView({ behavior: "smooth" })}>see it in full</button>
    </article>
  );
}

export function Answers() {
  const found = content.headlines.slice().sort((one, other) => ORDER.indexOf(one.about) - ORDER.indexOf(other.about));
  return (
    <>
      <div class="headlines">{found.map((each) => <Answer key={each.question} each={each} />)}</div>
      <Findings about="lab" title="Every run of the lab, in a sentence" open={!found.length} />
      <Findings about="comparison" title="How the runs compare, in words" open={!found.length} />
      {!content.findings.length && !found.length && <p>This page contains no study.</p>}
      {content.missing.length > 0 && <p class="missing">Missing: {content.missing.map((each) => each.what).join(", ")}.</p>}
    </>
  );
}
