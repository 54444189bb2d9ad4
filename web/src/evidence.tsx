// A sentence with its evidence one click away: how many problems, the interval, the kind of ablation, the command.
import { content, type Finding } from "./content";
import { spoken } from "./names";

export function Details({ of }: { of: Record<string, string> }) {
  return <dl>{Object.entries(of).map(([name, value]) => <><dt>{name}</dt><dd>{name === "command" || name === "source" ? <code>{value}</code> : value}</dd></>)}</dl>;
}

function Sentence({ finding }: { finding: Finding }) {
  const text = spoken(finding.text);
  return (
    <li class={finding.withheld ? "withheld" : ""}>
      <details>
        <summary>{finding.withheld ? <s>{text}</s> : text}</summary>
        <Details of={finding.details} />
      </details>
      {finding.withheld && <p>Withheld: {spoken(finding.withheld)}.</p>}
    </li>
  );
}

/** The findings of one part, folded beside the picture that they explain; what is withheld stays visible. */
export function Findings({ about, study, title, open }: { about: Finding["about"]; study?: string; title: string; open?: boolean }) {
  const found = content.findings.filter((each) => each.about === about && (study == null || each.study === study));
  if (!found.length) return null;
  const list = <ul class="findings">{found.map((finding) => <Sentence key={finding.text} finding={finding} />)}</ul>;
  return open || found.some((each) => each.withheld) ? list : (
    <details class="evidence">
      <summary>{title} <small>({found.length})</small></summary>
      {list}
    </details>
  );
}
