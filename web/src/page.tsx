// The page: answers first, then the model to try, then the evidence.
import { render } from "preact";
import { signal } from "@preact/signals";
import { content, type Finding } from "./content";
import { HeadsSection } from "./heads";
import { LengthsSection } from "./lengths";
import { freshSums } from "./counting";
import { Missing } from "./missing";
import { answer, source } from "./model";
import { save, Table, unpacked } from "./save";
import { model } from "./state";
import { Try } from "./try";

const theme = signal<"light" | "dark">(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function Told({ finding }: { finding: Finding }) {
  return (
    <li class={finding.withheld ? "withheld" : ""}>
      <details>
        <summary>{finding.withheld ? <s>{finding.text}</s> : finding.text}</summary>
        <dl>{Object.entries(finding.details).map(([name, value]) => <><dt>{name}</dt><dd>{name === "command" ? <code>{value}</code> : value}</dd></>)}</dl>
      </details>
      {finding.withheld && <p>Withheld: {finding.withheld}.</p>}
    </li>
  );
}

function Answers() {
  const first = content.findings.filter((each) => !each.more), more = content.findings.filter((each) => each.more);
  return (
    <>
      <div class="headlines">
        {content.headlines.map((each) => <div key={each.question}><small>{each.question}</small><strong>{each.answer}</strong><p>{each.rest}</p></div>)}
      </div>
      <ol class="findings">
        {first.map((finding) => <Told key={finding.text} finding={finding} />)}
        {!first.length && <li>No study is in this page.</li>}
        {content.missing.length > 0 && <li class="missing">Missing: {content.missing.map((each) => each.what).join(", ")}.</li>}
      </ol>
      {more.length > 0 && (
        <details class="more">
          <summary>What heads bring to the answer, tested: {more.length} more</summary>
          <ol class="findings">{more.map((finding) => <Told key={finding.text} finding={finding} />)}</ol>
        </details>
      )}
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
      <Table label="runs">
        <thead><tr>{columns.map((each) => <th key={each}>{each}</th>)}</tr></thead>
        <tbody>{runs.map((run, i) => <tr key={i}>{columns.map((each) => <td key={each} class="number">{typeof run[each] === "number" ? run[each].toLocaleString("en") : (run[each] ?? "–")}</td>)}</tr>)}</tbody>
      </Table>
      <h3>Everything in this page, as files</h3>
      <ul class="files">{content.files.map((file) => <li key={file.name}><button onClick={async () => save(file.name, await unpacked(file.data))}>{file.name}</button></li>)}</ul>
      {content.missing.map((each) => <Missing key={each.what} what={each.what} />)}
    </>
  );
}

const SECTIONS = [
  ["answers", "Answers", Answers], ["try", "Try it", Try], ["heads", "Heads", HeadsSection], ["length", "Length", LengthsSection], ["made", "How it was made", Made],
] as const;

function Page() {
  document.documentElement.dataset.theme = theme.value;
  if (content.only) return <main><section id="try" aria-label="maps"><Try key={theme.value} /></section></main>;
  return (
    <>
      <header>
        <h1>{content.title}</h1>
        <nav aria-label="sections">
          {SECTIONS.map(([id, name]) => <button key={id} onClick={() => document.getElementById(id)!.scrollIntoView({ behavior: "smooth" })}>{name}</button>)}
          <button id="theme" onClick={() => (theme.value = theme.value === "dark" ? "light" : "dark")}>{theme.value === "dark" ? "light" : "dark"}</button>
        </nav>
      </header>
      <main>{SECTIONS.map(([id, name, Section]) => <section id={id} key={id} aria-label={name}><h2>{name}</h2><Section key={theme.value} /></section>)}</main>
    </>
  );
}

// for tests, and for people with a console
Object.assign(window, {
  headway: {
    answer: (a: number, b: number, closed: string[]) => {
      const said = answer(model!, source(model!, a, b), new Set(closed));
      return { digits: said.digits, logits: Array.from(said.logits) };
    },
    freshSums,
  },
});

render(<Page />, document.getElementById("page")!);
document.documentElement.dataset.ready = "yes";
