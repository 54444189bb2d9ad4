// Try a length: a sequence of any length, the answer of every classifier to it, where they look, and where they break.
import { Heat } from "./maps";
import { Smallest } from "./smallest";
import { siteTitle } from "./names";
import { firstDescent, LONGEST, SHORTEST } from "./sequences";
import { Strip } from "./strip";
import { chooseLength, elements, focused, head, isSorted, length, looking, opinions, packed, pick, picked, sequence, sortAgain, swapNeighbours, titleOf, type Opinion } from "./tries";
import { TrySum } from "./trysum";

const LABELLED = 24; // elements, above which the bars carry no numbers

/** Moves the focus along a row of buttons with the arrow keys; the tab key leaves it. */
export function walk(event: KeyboardEvent, from: number, most: number, go: (place: number) => void): void {
  const to = ({ ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: most - 1 } as Record<string, number>)[event.key];
  if (to == null || to < 0 || to >= most) return;
  event.preventDefault();
  const row = event.currentTarget as HTMLElement;
  go(to);
  row.querySelectorAll("button")[to]!.focus();
}

function Controls() {
  return (
    <div class="choose">
      <label for="length-slider">Length</label>
      <input id="length-slider" type="range" min={SHORTEST} max={LONGEST} value={length.value} onInput={(event) => chooseLength(event.currentTarget.valueAsNumber)} />
      <input type="number" aria-label="length as a number" min={SHORTEST} max={LONGEST} value={length.value} onChange={(event) => { chooseLength(event.currentTarget.valueAsNumber); event.currentTarget.value = String(length.value); }} />
      <button id="swap-neighbours" onClick={swapNeighbours}>swap two neighbours</button>
      <button id="sort-again" onClick={sortAgain}>sort</button>
      <button id="new-elements" onClick={() => { sortAgain(); elements.value++; }}>other numbers</button>
    </div>
  );
}

function Bars() {
  const now = sequence.value, count = now.length, most = packed[0]!.values - 1;
  const keys = (event: KeyboardEvent): void => {
    if (event.key === "Escape") picked.value = null;
    walk(event, focused.value, count, (place) => (focused.value = place));
  };
  return (
    <div class={count > 48 ? "elements many" : "elements"} style={{ "--count": count }} role="group" aria-label={`the sequence, ${count} elements: arrow keys move, space picks two to swap`} onKeyDown={keys}>
      {now.map((value, place) => {
        const falls = place > 0 && value < now[place - 1]!;
        return (
          <button key={place} class={falls ? "element falls" : "element"} tabIndex={focused.value === place ? 0 : -1} aria-pressed={picked.value === place} title={`element ${place + 1}: ${value}`}
            aria-label={`element ${place + 1}: ${value}${falls ? ", smaller than the one before it" : ""}`} onClick={() => pick(place)}>
            {count <= LABELLED && <small>{value}</small>}
            <i style={{ height: `${4 + 84 * (value / most)}%` }} />
          </button>
        );
      })}
    </div>
  );
}

function truth(): string {
  const now = sequence.value, place = firstDescent(now);
  return place < 0 ? "This sequence is sorted: no element is smaller than the one before it." : `This sequence is not sorted: element ${place + 1} (${now[place]}) is smaller than element ${place} (${now[place - 1]}).`;
}

function Card({ number, opinion }: { number: number; opinion: Opinion | null }) {
  const model = packed[number]!, right = opinion?.sorted === isSorted.value, [from, to] = model.trained;
  const place = length.value < from ? "shorter than in training" : length.value > to ? "longer than in training" : "a trained length";
  return (
    <button class="opinion" data-model={model.name} aria-pressed={looking.value === number} onClick={() => { looking.value = number; head.value = 0; }}>
      <b>{titleOf(model.name)}</b>
      {opinion ? (
        <>
          <strong class={right ? "right" : "wrong"}>{right ? "✓" : "✗"} says {opinion.sorted ? "sorted" : "not sorted"}</strong>
          <span class="bar"><i style={{ width: `${100 * opinion.chance}%` }} /></span>
          <small>probability {opinion.chance > 0.99995 ? "above 0.9999" : opinion.chance.toFixed(4)}, margin {opinion.margin.toFixed(2)}</small>
        </>
      ) : <strong>no signal for more than {model.rows} elements</strong>}
      <small>{model.name === "certified sorter" ? "proved right at every length" : `trained on ${from} to ${to}: ${place}`}</small>
    </button>
  );
}

function MapsOf({ opinion }: { opinion: Opinion }) {
  const words = sequence.value.map(String), all = Object.entries(opinion.maps).flatMap(([site, maps]) => maps.map((map, number) => ({ name: `${siteTitle(site)}H${number}`, map })));
  const large = all[head.value] ?? all[0]!, name = titleOf(packed[looking.value]!.name);
  return (
    <>
      <h3>Where it looks: {name}</h3>
      <p class="note">A row for each element, a column for each element it attends to; darker is more (lighter in the dark theme). Press a map to enlarge it.</p>
      <div class="maps">
        <div class="heads">
          {all.map((each, place) => (
            <figure key={each.name} class={head.value === place ? "head chosen" : "head"}>
              <button class="map" aria-label={`enlarge ${each.name} of ${name}`} aria-pressed={head.value === place} onClick={() => (head.value = place)}>
                <Heat map={each.map} queries={words} keys={words} size={120} whole label={`attention of ${each.name}, ${name}`} />
              </button>
              <figcaption>{each.name}</figcaption>
            </figure>
          ))}
        </div>
        <aside class="large-map" aria-label={`head ${large.name} of ${name}`}>
          <h4>{large.name}</h4>
          <Heat map={large.map} queries={words} keys={words} size={288} large whole label={`attention of ${large.name}, ${name}, large`} />
        </aside>
      </div>
    </>
  );
}

export function TryLength() {
  const answers = opinions.value, shown = answers[looking.value], lab = packed.length - 1;
  return (
    <>
      <p>{lab > 0 ? `${lab === 1 ? "A trained classifier" : `${lab} trained classifiers`} and the certified sorter run` : "The certified sorter runs"} inside this page. Choose a length, swap two elements, and see who still notices.</p>
      <Controls />
      <Bars />
      <p class="note" role="status" id="truth">{picked.value == null ? truth() : `Element ${picked.value + 1} (${sequence.value[picked.value]}) is picked: press another one to swap them.`}</p>
      <div class="opinions" role="group" aria-label="what each model answers">{packed.map((model, number) => <Card key={model.name} number={number} opinion={answers[number] ?? null} />)}</div>
      <Strip />
      {shown && <MapsOf opinion={shown} />}
      <TrySum />
      <Smallest />
    </>
  );
}
