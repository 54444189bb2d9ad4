// The parts that this page lacks, and the commands that make them.
import { content } from "./content";

export function Missing({ what }: { what: string }) {
  const found = content.missing.filter((each) => each.what === what);
  return <div class="missing">{found.length ? found.map((each) => <p key={each.command}>Not in this page: {each.what}. <code>{each.command}</code> makes it.</p>) : <p>Nothing here.</p>}</div>;
}
