// The page: answers first, then the model to try, then the evidence.
import { render } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { Answers } from "./answers";
import { MistakesSection, SubmissionsSection } from "./classroom";
import { ComparisonSection } from "./comparison";
import { content } from "./content";
import { HeadsSection } from "./heads";
import { Learned, learningOf } from "./learning";
import { LengthsSection } from "./lengths";
import { freshSums } from "./counting";
import { Missing } from "./missing";
import { answer, source } from "./forward/adder";
import { classify } from "./forward/classifier";
import { writeSum } from "./forward/decoder";
import { writeSmallest } from "./forward/smallest";
import { save, Table, unpacked } from "./save";
import { stripPair } from "./sequences";
import { landed, model, SECTIONS } from "./state";
import { theme } from "./theme";
import { certifiedAdder, classifiers, smallest } from "./tries";
import { Try } from "./try";
import { TryLength } from "./trylength";

const LISTED = 40; // files, above which those of single runs are collapsed

function Files() {
  const { files, left_out } = content, folded = files.length > LISTED;
  const ofRuns = /(^|-)(config|training|environment|evaluation[^/]*)\.json$/;
  const list = (shown: typeof files) => <ul class="files">{shown.map((file) => <li key={file.name}><button onClick={async () => save(file.name, await unpacked(file.data))}>{file.name}</button></li>)}</ul>;
  const [few, many] = [files.filter((file) => !ofRuns.test(file.name)), files.filter((file) => ofRuns.test(file.name))];
  return (
    <>
      {list(folded ? few : files)}
      {folded && many.length > 0 && <details><summary>{many.length} more: config, training and evaluation of each run</summary>{list(many)}</details>}
      {left_out.length > 0 && <p id="left-out">Too large for this page and left in the folder: {left_out.slice(0, LISTED).join(", ")}{left_out.length > LISTED ? ` and ${left_out.length - LISTED} more` : ""}.</p>}
    </>
  );
}

function Made() {
  const { facts, commands, runs } = content.made;
  const columns = [...new Set(runs.flatMap((run) => Object.keys(run)))];
  return (
    <>
      <dl>{Object.entries(facts).map(([name, value]) => <><dt>{name}</dt><dd>{value}</dd></>)}</dl>
      {commands.length > 0 && <pre>{commands.join("\n")}</pre>}
      {runs.length > 0 && <Table label="runs" csv={() => [columns, ...runs.map((run) => columns.map((each) => run[each]))]}>
        <thead><tr>{columns.map((each) => <th key={each}>{each}</th>)}</tr></thead>
        <tbody>{runs.map((run, i) => <tr key={i}>{columns.map((each) => <td key={each} class="number">{typeof run[each] === "number" ? run[each].toLocaleString("en") : (run[each] ?? "–")}</td>)}</tr>)}</tbody>
      </Table>}
      <Learned runs={learningOf("made")} title="How each run learned" />
      <h3>Everything in this page, as files</h3>
      <Files />
      {content.missing.map((each) => <Missing key={each.what} what={each.what} />)}
    </>
  );
}

const PARTS: Record<string, [string, () => preact.JSX.Element | null]> = {
  answers: ["Answers", Answers],
  try: ["Try it", Try],
  heads: ["Heads", HeadsSection],
  "try-length": ["Try a length", TryLength],
  length: ["Length", LengthsSection],
  comparison: ["Comparison", ComparisonSection],
  made: ["How it was made", Made],
  mistakes: ["Mistakes", MistakesSection],
  submissions: ["Submissions", SubmissionsSection],
};

/** A part that fails to render does not affect the others. */
function Part({ of: Drawn }: { of: () => preact.JSX.Element | null }) {
  const [error] = useErrorBoundary();
  return error ? <p class="wrong" role="alert">This part cannot be drawn: {String(error)}</p> : <Drawn />;
}

function Page() {
  if (content.only) return <main><section id="try" aria-label="maps"><Part of={Try} /></section></main>;
  return (
    <>
      <header>
        <h1>{content.title}</h1>
        <nav aria-label="sections">
          {SECTIONS.map((id) => <button key={id} onClick={() => document.getElementById(id)!.scrollIntoView({ behavior: "smooth" })}>{PARTS[id]![0]}</button>)}
          <button id="theme" onClick={() => (theme.value = theme.value === "dark" ? "light" : "dark")}>{theme.value === "dark" ? "light" : "dark"}</button>
        </nav>
      </header>
      <main>{SECTIONS.map((id) => <section id={id} key={id} aria-label={PARTS[id]![0]}><h2>{PARTS[id]![0]}</h2><Part of={PARTS[id]![1]} /></section>)}</main>
    </>
  );
}

// for tests, and for people with a console
Object.assign(window, {
  headway: {
    answer: (a: number, b: number, closed: string[]) => {
      const answered = answer(model!, source(model!, a, b), new Set(closed));
      return { digits: answered.digits, logits: Array.from(answered.logits) };
    },
    freshSums,
    classify: (name: string, sequence: number[]) => classify(classifiers().find((model) => model.name === name)!, sequence).logits,
    add: (a: number[], b: number[]) => {
      const written = writeSum(certifiedAdder(), a, b);
      return { digits: written.digits, logits: written.logits.map((each) => Array.from(each)) };
    },
    addSmallest: (a: number[], b: number[]) => writeSmallest(smallest!, a, b),
    stripPair,
  },
});

render(<Page />, document.getElementById("page")!);
if (SECTIONS.includes(landed)) document.getElementById(landed)!.scrollIntoView();
document.documentElement.dataset.ready = "yes";
