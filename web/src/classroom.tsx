// A class: which mistakes it makes, who makes the same ones, and the examination of each submission.
import { computed, signal } from "@preact/signals";
import { Fragment } from "preact";
import { content, type Classroom, type Member } from "./content";
import { Table, type Cells } from "./save";

const NAMED = 12; // submissions of a group that are listed at once
const NUMBERS = ["reported", "decoded", "forced"] as const;
const COLUMNS: Record<string, string> = {
  submission: "submission", verdict: "verdict", reported: "published", decoded: "decoded", forced: "teacher-forced", sentence: "what was found",
};
const KINDS = ["all", "healthy", "with mistakes", "not examined"] as const;

const wanted = signal(""); // in the search field
const kind = signal<(typeof KINDS)[number]>("all");
const mistake = signal<string | null>(null);
const order = signal<{ by: string; down: boolean } | null>(null);
const open = signal<ReadonlySet<string>>(new Set());

const room = content.classroom ?? { members: [], mistakes: [], groups: [] } as unknown as Classroom;

function verdict(member: Member): string {
  if (member.refused) return "not examined";
  return member.healthy ? "healthy" : member.causes.join(", ") || "not healthy";
}

function kindOf(member: Member): (typeof KINDS)[number] {
  return member.refused ? "not examined" : member.healthy ? "healthy" : "with mistakes";
}

const number = (value: number | null): string => (value == null ? "\u2013" : value.toFixed(4));

const listed = computed(() => {
  const words = wanted.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = room.members.filter((member) => {
    const text = [member.submission, verdict(member), member.sentence, ...member.mistakes].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && (kind.value === "all" || kindOf(member) === kind.value) && (!mistake.value || member.mistakes.includes(mistake.value));
  });
  const sorting = order.value;
  if (!sorting) return rows;
  const worth = (member: Member): string | number | null => (sorting.by === "verdict" ? verdict(member) : (member[sorting.by as "submission"] as string | number | null));
  return rows.slice().sort((one, other) => {
    const [x, y] = [worth(one), worth(other)];
    if (x == null || y == null) return Number(x == null) - Number(y == null); // unknown numbers come last
    const smaller = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return sorting.down ? -smaller : smaller;
  });
});

function toggle(name: string): void {
  const now = new Set(open.value);
  now.has(name) ? now.delete(name) : now.add(name);
  open.value = now;
}

/** Shows one submission with its examination, whatever was selected. */
function visit(name: string): void {
  [wanted.value, kind.value, mistake.value] = ["", "all", null];
  open.value = new Set([...open.value, name]);
  requestAnimationFrame(() => document.getElementById(`of-${name}`)?.scrollIntoView({ block: "center" }));
}

function select(name: string): void {
  [wanted.value, kind.value, mistake.value] = ["", "all", name];
  document.getElementById("submissions")!.scrollIntoView({ behavior: "smooth" });
}

function Names({ of: names }: { of: string[] }) {
  const button = (name: string) => <button key={name} onClick={() => visit(name)}>{name}</button>;
  return (
    <div class="names">
      {names.slice(0, NAMED).map(button)}
      {names.length > NAMED && <details><summary>and {names.length - NAMED} more</summary>{names.slice(NAMED).map(button)}</details>}
    </div>
  );
}

function Groups({ of: groups }: { of: Classroom["groups"] }) {
  return (
    <ul class="groups">{groups.map((group) => (
      <li key={group.mistakes.join()}>
        <b>{group.count}</b> {group.mistakes.length ? group.mistakes.join("; ") : "nothing wrong"}
        <Names of={group.submissions} />
      </li>
    ))}</ul>
  );
}

export function MistakesSection() {
  const { members, mistakes, groups } = room, count = members.length;
  const of = (which: string): number => members.filter((member) => kindOf(member) === which).length;
  const alone = groups.filter((group) => group.count === 1);
  return (
    <>
      <div class="headlines">
        {KINDS.slice(1).map((each) => (
          <div key={each}><small>{each}</small><strong>{of(each)} of {count}</strong></div>
        ))}
      </div>
      <h3>Which mistakes this class makes</h3>
      {!mistakes.length && <p>No check found a mistake in any submission.</p>}
      {mistakes.length > 0 && (
        <Table label="mistakes" csv={() => [["mistake", "submissions", "count"], ...mistakes.map((each): Cells => [each.mistake, each.submissions.join(" "), each.count])]}>
          <thead><tr><th>submissions</th><th>mistake</th></tr></thead>
          <tbody>{mistakes.map((each) => (
            <tr key={each.mistake}>
              <td class="number"><span class="bar"><i style={{ width: `${(100 * each.count) / count}%` }} /></span>{each.count}</td>
              <td>
                <button class="plain mistake" onClick={() => select(each.mistake)}>{each.mistake}</button>
                <div class="note">For example: {each.sentence}</div>
                {each.remedy && <div class="note">→ {each.remedy}</div>}
              </td>
            </tr>
          ))}</tbody>
        </Table>
      )}
      <h3>Who has the same</h3>
      <Groups of={groups.filter((group) => group.count > 1)} />
      {alone.length > 0 && <details><summary>{alone.length} that no other submission has</summary><Groups of={alone} /></details>}
    </>
  );
}

function Examination({ of: member }: { of: Member }) {
  const ran = member.checks.filter((each) => each.status !== "skipped"), skipped = member.checks.filter((each) => each.status === "skipped");
  const rank = (status: string, cause: boolean): number => (status === "fail" ? (cause ? 0 : 1) : status === "warn" ? 2 : 3);
  const sorted = ran.slice().sort((one, other) => rank(one.status, one.cause) - rank(other.status, other.cause));
  return (
    <div class="examination">
      <p class="note">{member.folder} · {member.seconds.toFixed(1)} s</p>
      {member.refused && <p class="wrong">{member.refused}</p>}
      <ul>{sorted.map((each) => (
        <li key={each.check}>
          <span class={`status ${each.status}`}>{each.status}</span> <b>{each.check}</b>{each.status === "fail" && <small> {each.cause ? "cause" : each.under ? `follows from ${each.under}` : "symptom"}</small>}: {each.meaning}
          {each.remedy && <div class="note">→ {each.remedy}</div>}
        </li>
      ))}</ul>
      {skipped.length > 0 && <details><summary>{skipped.length} checks did not run</summary><ul>{skipped.map((each) => <li key={each.check}><b>{each.check}</b>{each.hidden_by && <small> hidden by {each.hidden_by}</small>}: {each.meaning}{each.uncover && <div class="note">→ {each.uncover}</div>}</li>)}</ul></details>}
      {member.output && <details open={!!member.refused}><summary>What it printed ({member.printed.toLocaleString("en")} bytes)</summary><pre>{member.output}</pre></details>}
    </div>
  );
}

export function SubmissionsSection() {
  const sorting = order.value, rows = listed.value, columns = Object.keys(COLUMNS);
  const sortBy = (by: string) => (order.value = { by, down: sorting?.by === by ? !sorting.down : false });
  const csv = (): Cells[] => [
    ["submission", "verdict", ...NUMBERS, "mistakes", "sentence", "seconds"],
    ...rows.map((each): Cells => [each.submission, verdict(each), ...NUMBERS.map((name) => each[name]), each.mistakes.join("; "), each.sentence, each.seconds]),
  ];
  return (
    <>
      <div class="search">
        <input type="search" aria-label="search submissions" placeholder="search: a name, a mistake, a word" value={wanted.value} onInput={(event) => (wanted.value = event.currentTarget.value)} />
        {KINDS.map((each) => <button key={each} aria-pressed={kind.value === each} onClick={() => (kind.value = each)}>{each}</button>)}
        {mistake.value && <button aria-pressed="true" onClick={() => (mistake.value = null)} aria-label={`show all mistakes, not only ${mistake.value}`}>{mistake.value} ×</button>}
        <span class="note" role="status">{rows.length} of {room.members.length}</span>
      </div>
      <Table label="submissions" id="class" csv={csv}>
        <thead><tr>{columns.map((by) => (
          <th key={by} aria-sort={sorting?.by === by ? (sorting.down ? "descending" : "ascending") : "none"}>
            <button onClick={() => sortBy(by)}>{COLUMNS[by]}{sorting?.by === by ? (sorting.down ? " ▼" : " ▲") : ""}</button>
          </th>
        ))}</tr></thead>
        <tbody>{rows.map((each) => (
          <Fragment key={each.submission}>
            <tr id={`of-${each.submission}`} class={open.value.has(each.submission) ? "chosen" : ""}>
              <td><button class="plain name" aria-expanded={open.value.has(each.submission)} onClick={() => toggle(each.submission)}>{open.value.has(each.submission) ? "▾" : "▸"} {each.submission}</button></td>
              <td class={kindOf(each) === "healthy" ? "right" : "wrong"}>{verdict(each)}</td>
              {NUMBERS.map((name) => <td key={name} class="number" data-label={COLUMNS[name]}>{number(each[name])}</td>)}
              <td>{each.sentence}</td>
            </tr>
            {open.value.has(each.submission) && <tr class="opened"><td colSpan={columns.length}><Examination of={each} /></td></tr>}
          </Fragment>
        ))}</tbody>
      </Table>
      {!rows.length && <p class="note">No submission matches.</p>}
    </>
  );
}
