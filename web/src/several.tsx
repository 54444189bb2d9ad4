// Where the costliest heads look, problem by problem: an average hides what differs from one problem to the next.
import { content } from "./content";
import { Heat } from "./maps";
import { headTitle } from "./names";
import { chosen } from "./state";

const joined = (tokens: string[]): string => tokens.filter((token) => token !== "end").join(tokens.every((token) => token.length === 1 || token === "end") ? "" : " ");

export function SeveralPart() {
  const several = content.several;
  if (!several?.problems[0]?.maps.length) return null;
  return (
    <>
      <h3>Where they look, problem by problem</h3>
      <p>The {several.heads.length} heads that cost most, on {several.problems.length} problems; below each map the problem and the model's answer. The tokens are on the axes: rows are queries, columns are keys.</p>
      {several.problems[0].maps.map(({ head }, place) => (
        <div key={head} class="several" role="group" aria-label={`${headTitle(head)} on ${several.problems.length} problems`}>
          <h4><button class="plain" onClick={() => (chosen.value = head)}>{headTitle(head)}</button></h4>
          <div class="patterns">
            {several.problems.map((problem, number) => {
              const map = problem.maps[place]!, right = joined(problem.said) === joined(problem.wanted), read = joined(problem.read), said = joined(problem.said);
              return (
                <figure key={number} class={chosen.value === head ? "head chosen" : "head"}>
                  <Heat map={Float32Array.from(map.weights.flat(), (weight) => weight ?? 0)} queries={map.queries} keys={map.keys} size={91} label={`attention of ${headTitle(head)} on ${read}`} />
                  <figcaption title={`${read} → ${said}`}>{read}<br />{right ? `→ ${said}` : <b class="wrong">→ {said} ✗</b>}</figcaption>
                </figure>
              );
            })}
          </div>
        </div>
      ))}
    </>
  );
}
