// Where each head looks on average. A pattern is a description, not a cause.
import { content } from "./content";
import { Heat } from "./maps";
import { headTitle, numberOf, shortHead, siteOf } from "./names";
import { chosen } from "./state";

/** The selected head's average map, large enough to read. */
function Magnified() {
  const head = chosen.value, site = content.maps?.find((each) => head && each.site === siteOf(head)), weights = site?.heads[head ? numberOf(head) : -1];
  if (!head || !site || !weights) return <p class="hint">Click a map to enlarge it.</p>;
  return (
    <aside class="magnified" aria-label={`average map of ${headTitle(head)}, large`}>
      <h4>{headTitle(head)}</h4>
      <Heat map={Float32Array.from(weights.flat())} queries={site.queries} keys={site.keys} size={260} large label={`average attention of ${headTitle(head)}, large`} />
      <button onClick={() => (chosen.value = null)}>back</button>
    </aside>
  );
}

export function PatternsPart() {
  const maps = content.maps, rows = new Map(content.heads!.heads.map((row) => [row.head, row]));
  if (!maps) return null;
  return (
    <>
      <h3>Where they look on average</h3>
      <p>Rows are queries, columns are keys, by position; below each map the pattern that gains most over shuffled weights, and the share of problems in which it wins as well. A pattern is a description, not a cause.</p>
      <div class="maps">
      <div class="patterns averages">
        {maps.flatMap((site) => site.heads.map((weights, number) => {
          const head = `${site.site}.${number}`, row = rows.get(head);
          return (
            <figure key={head} class={chosen.value === head ? "head chosen" : "head"}>
              <button class="map" onClick={() => (chosen.value = head)} aria-label={`average map of ${headTitle(head)}`} title={head}>
                <Heat map={Float32Array.from(weights.flat())} queries={site.queries} keys={site.keys} size={112} label={`average attention of ${headTitle(head)}`} />
              </button>
              <figcaption>{shortHead(head)}<br />{row?.pattern_scores ? `${row.pattern_scores.label} ${(100 * row.pattern_scores.stable).toFixed(0)}%` : "–"}</figcaption>
            </figure>
          );
        }))}
      </div>
      <Magnified />
      </div>
    </>
  );
}
