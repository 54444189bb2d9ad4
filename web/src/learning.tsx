// How runs learned: accuracy and loss by training step, in training batches and on held-out problems, as small charts.
import { Chart, type Line } from "./chart";
import { content, type Learning } from "./content";

function lines(training: [number, number][], heldOut: [number, number][]): Line[] {
  return [{ name: "training batch", points: training }, ...(heldOut.length ? [{ name: "held-out problems", points: heldOut }] : [])];
}

export function Learned({ runs, title }: { runs: Learning[]; title: string }) {
  if (!runs.length) return null;
  return (
    <>
      <h3>{title}</h3>
      <div class="multiples">
        {runs.flatMap((each) => [
          <div key={each.run}><h4>{each.run}: accuracy</h4><Chart compact label={`accuracy while training, ${each.run}`} x="training step" y="accuracy" lines={lines(each.training, each.held_out)} /></div>,
          each.training_loss?.length > 0 && <div key={each.run + "loss"}><h4>{each.run}: loss</h4><Chart compact steep label={`loss while training, ${each.run}`} x="training step" y="loss" lines={lines(each.training_loss, each.held_out_loss)} /></div>,
        ])}
      </div>
    </>
  );
}

/** The runs of the studies of length, those of the model in the page, and the others. */
export function learningOf(part: "length" | "try" | "made"): Learning[] {
  const tasks = new Set(content.lengths.map((study) => study.task)), inside = content.model?.run;
  const home = (each: Learning): string => (each.run === inside ? "try" : tasks.has(each.task) ? "length" : "made");
  return content.made.curves.filter((each) => home(each) === part);
}
