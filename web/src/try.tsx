// Try it: a sum, answered by the trained model inside this file; heads can be closed. Where no model is inside, problems
// that were worked out beforehand.
import { content } from "./content";
import { counted, SUMS } from "./counting";
import { Heat } from "./maps";
import { headTitle, numberOf, siteOf, siteTitle } from "./names";
import { a, b, chosen, closed, example, largest, model, shown, step, toggle, valid, type Shown } from "./state";

function random(): void {
  a.value = String(Math.floor(Math.random() * (largest + 1)));
  b.value = String(Math.floor(Math.random() * (largest + 1)));
}

/** A carry that runs through every digit: the digits of b are nine minus those of a, and one more. */
function hardest(): void {
  const first = Math.floor(Math.random() * (largest - 1)) + 1;
  a.value = String(first);
  b.value = String(largest - first + 1);
}

function presets(): [string, string[]][] {
  const found: [string, string[]][] = [["all open", []]];
  const heads = content.heads;
  if (heads?.alone) found.push([`what the single-head rule would prune (${heads.alone.count})`, heads.alone.heads]);
  if (heads?.together) found.push([`largest safe set (${heads.together.count})`, heads.together.heads]);
  return found;
}

function correctAnswer(now: Shown): string {
  return model ? `${Number(a.value)} + ${Number(b.value)} = ${Number(a.value) + Number(b.value)}` : `right is ${now.wanted.join(" ")}`;
}

function Digits({ now }: { now: Shown }) {
  const correct = now.said.every((word, place) => word === now.wanted[place]);
  return (
    <div class="answer">
      <div class="digits" role="group" aria-label="the answer, token by token">
        {now.said.map((word, place) => {
          const chance = now.likely[place]![0]![1];
          return (
            <button class={`digit ${word === now.wanted[place] ? "good" : "bad"} ${step.value === place ? "now" : ""}`} key={place} aria-pressed={step.value === place}
              onClick={() => (step.value = place)} title={`${word} with probability ${chance.toFixed(4)}`}>
              <b class={word.length > 2 ? "word" : ""}>{word}</b>
              <i style={{ height: `${Math.round(chance * 100)}%` }} />
              <small>{chance > 0.9995 ? "1.000" : chance.toFixed(3)}</small>
            </button>
          );
        })}
      </div>
      <p class={correct ? "right verdict" : "wrong verdict"} id="verdict">{correct ? "✓ right" : `✗ wrong: ${correctAnswer(now)}`}</p>
      <p class="chances">
        {model ? "Digit" : "Token"} {step.value + 1} of {now.said.length}: {(now.likely[step.value] ?? now.likely[0]!).slice(0, 3).map(([word, chance]) => `${word} ${chance.toFixed(4)}`).join(", ")}
      </p>
    </div>
  );
}

function Accuracy() {
  const now = counted.value;
  if (!now) return null;
  return (
    <div class="accuracy">
      <progress max={now.of} value={now.done} aria-label="sums counted" />
      <output id="accuracy">
        {now.done < now.of ? `${now.done} of ${SUMS} fresh sums…` : `${now.of - now.wrong} of ${now.of} fresh sums right (${(1 - now.wrong / now.of).toFixed(3)})`}
        {closed.value.size ? ` without ${closed.value.size} heads` : " with all heads"}
      </output>
    </div>
  );
}

/** The row of a site's maps that belongs to the token of the answer that is looked at. */
function marked(now: Shown, site: Shown["maps"][number]): number | null {
  const first = site.queries.length - now.said.length;
  return site.site.startsWith("decoder") && first >= 0 ? first + step.value : null;
}

function Site({ now, site }: { now: Shown; site: Shown["maps"][number] }) {
  const own = site.heads.map((_, number) => `${site.site}.${number}`);
  return (
    <div class="site">
      {model ? <button class="name" onClick={() => toggle(own)} title="close or open all heads of this site">{siteTitle(site.site)}</button> : <span class="name">{siteTitle(site.site)}</span>}
      {own.map((head, number) => {
        const off = closed.value.has(head);
        return (
          <figure key={head} class={chosen.value === head ? "head chosen" : "head"}>
            <button class="map" onClick={() => (chosen.value = head)} aria-label={`enlarge ${head}`}>
              <Heat map={site.heads[number]!} queries={site.queries} keys={site.keys} size={84} dim={off} label={`attention of ${head}`} marked={marked(now, site)} />
            </button>
            <figcaption>
              <label><input type="checkbox" id={`gate-${head}`} checked={!off} onChange={() => toggle([head])} /> H{number}</label>
            </figcaption>
          </figure>
        );
      })}
    </div>
  );
}

function Enlarged({ now }: { now: Shown }) {
  const head = chosen.value, site = now.maps.find((each) => head && each.site === siteOf(head));
  if (!head || !site) return <p class="hint">Press a map to enlarge it; untick a head to close it. Hover a cell for its weight, a token to follow it.</p>;
  const row = content.heads?.heads.find((each) => each.head === head);
  return (
    <aside class="enlarged" aria-label={`head ${head}`}>
      <h3>{headTitle(head)}</h3>
      <Heat map={site.heads[numberOf(head)]!} queries={site.queries} keys={site.keys} size={260} large
        label={`attention of ${head}, large`} marked={marked(now, site)} dim={closed.value.has(head)} />
      {row && <p>Alone it costs {(100 * row.drop).toFixed(2)}% ({row.verdict}){row.pattern ? `; it looks: ${row.pattern}` : ""}.</p>}
      <p><button onClick={() => toggle([head])}>{closed.value.has(head) ? "open it" : "close it"}</button> <button onClick={() => (chosen.value = null)}>back</button></p>
    </aside>
  );
}

function Sum() {
  const field = (which: typeof a, label: string) => (
    <input aria-label={label} inputMode="numeric" value={which.value} maxLength={String(largest).length}
      class={valid.value ? "" : "wrong"} onInput={(event) => (which.value = event.currentTarget.value.trim())} />
  );
  return (
    <div class="sum">
      {field(a, "first number")} <span>+</span> {field(b, "second number")} <span>=</span>
      <button onClick={random} id="random">random</button>
      <button onClick={hardest} id="hardest" title="a carry through every digit">hardest</button>
    </div>
  );
}

function Examples() {
  return (
    <>
      {content.only ? null : <p>This page has no model inside; these problems were worked out beforehand, each token after the right ones before it. Heads can be closed one at a time, or as the two sets below.</p>}
      {content.examples.length > 1 && (
        <div class="presets" role="group" aria-label="problems">
          {content.examples.map((_, place) => <button key={place} aria-pressed={example.value === place} onClick={() => (example.value = place)}>problem {place + 1}</button>)}
        </div>
      )}
      <p class="read">{content.examples[example.value]!.read.join(" ")} →</p>
    </>
  );
}

export function Try() {
  if (!model && !content.examples.length) return <p>This page has no model inside, and no problem was worked out for it; <code>headway heads</code> works some out.</p>;
  const now = shown.value;
  return (
    <>
      {model ? <Sum /> : <Examples />}
      {now ? <Digits now={now} /> : <p class="wrong" role="alert">Two numbers from 0 to {largest}, please.</p>}
      <div class="presets" role="group" aria-label="heads to close">
        {presets().map(([name, heads]) => (
          <button key={name} onClick={() => (closed.value = new Set(heads))}>{name}</button>
        ))}
      </div>
      <Accuracy />
      {now && (
        <div class="maps">
          <div class="sites">{now.maps.map((site) => <Site key={site.site} now={now} site={site} />)}</div>
          <Enlarged now={now} />
        </div>
      )}
    </>
  );
}
