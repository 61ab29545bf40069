//! Every key a strategy file may hold: one table for the parser, its suggestions, and the schema.

use crate::base::nearest::nearest;

/// One key: where it stands, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The key it stands under, dotted; empty at the top level.
    pub level: &'static str,
    pub name: &'static str,
    pub about: &'static str,
}

const fn key(level: &'static str, name: &'static str, about: &'static str) -> Key {
    Key { level, name, about }
}

pub const KEYS: &[Key] = &[
    key("", "version", "version of this format: 1"),
    key("", "name", "what the strategy is called"),
    key("", "about", "one line about it, shown in lists"),
    key("", "task", "the task it is for; without it, any"),
    key("", "extends", "another strategy, by file or built-in name, of which this one changes some keys"),
    key("", "include", "a file or a list of files in this folder whose keys stand here too"),
    key("", "vars", "values of this strategy with their defaults, `{{ vars.NAME }}`; changed by --set NAME=VALUE"),
    key("", "search", "how the tree is searched"),
    key("", "generate", "how thoughts are made"),
    key("", "levels", "a list of what differs at the first levels, level 1 first"),
    key(
        "",
        "stages",
        "searches one after another, each from where the one before ended; what a stage does not name is as above",
    ),
    key("", "evaluate", "how thoughts are scored: a list; the scores multiply"),
    key("", "score", "the score as an expression over the evaluators' values, such as `0.5 * checker + 0.5 * value`"),
    key("", "budget", "what a run may spend"),
    key("", "offload", "how K/V beyond the device's memory is fetched (docs/offload.md); --offload comes before it"),
    key(
        "search",
        "policy",
        "bfs (the best of each level live on), dfs (best child first, backtracking), beam (the best paths of each level), best-first (the best thought of the whole tree), mcts (Monte-Carlo tree search), graph (split, solve, merge, improve), best-of-n or self-consistency (one of several whole answers); settings as {mcts: {c: 1.4}}",
    ),
    key("search", "depth", "levels of thoughts below the root; default 1"),
    key("search", "keep", "bfs and beam: how many thoughts of a level live on; graph: of a part; default 1"),
    key("search", "prune_below", "thoughts that score below this (0 to 1) are pruned; default 0"),
    key("search", "children", "dfs: how many children of a thought are followed before it is given up; default all"),
    key("search", "prune", "an expression; a thought for which it holds is pruned: `score < 0.5 * best`"),
    key("search", "accept", "an expression; a thought for which it holds is the answer: `score >= 0.95`"),
    key("search", "stop", "an expression; the search ends once it holds: `thoughts > 200 and best < 0.1`"),
    key(
        "search.policy.beam",
        "likelihood",
        "weight of the path's log-probability against its scores, 0 to 1; default 0",
    ),
    key("search.policy.best-first", "priority", "an expression; the highest comes next; default `score`"),
    key("search.policy.best-first", "width", "thoughts expanded at a time; default 1"),
    key("search.policy.mcts", "c", "weight of curiosity in UCT, 0 and up; default 1.414"),
    key("search.policy.mcts", "simulations", "simulations after which the search ends; default 50"),
    key(
        "search.policy.mcts",
        "rollout",
        "true: a simulation goes on to the end of an answer; false: a thought's own score is its value; default false",
    ),
    key(
        "search.policy.graph",
        "operations",
        "a list, one a level: {split: PARTS}, generate, aggregate (merge neighbours), improve",
    ),
    key("search.policy.graph.operations", "split", "cut the puzzle into so many parts: a power of two"),
    key("stages", "search", "what differs from `search` in this stage; its depth counts its own levels"),
    key("stages", "generate", "what differs from `generate` in this stage"),
    key("stages", "evaluate", "what takes the place of `evaluate` in this stage"),
    key("levels", "generate", "what differs from `generate` at this level"),
    key("levels", "evaluate", "what takes the place of `evaluate` at this level"),
    key("levels", "keep", "what takes the place of `search.keep` at this level"),
    key(
        "generate",
        "kind",
        "sample (n samples), likeliest (the n likeliest), propose (one reply, one proposal a line) or random (n random ones of what the puzzle allows); default sample",
    ),
    key("generate", "n", "proposals for each expanded thought; default 1"),
    key("generate", "prompt", "a prompt file beside the strategy, a built-in one, or the text itself after `|`"),
    key(
        "generate",
        "format",
        "completion (the text as it stands) or chat (one user turn); default chat where the model has a template",
    ),
    key(
        "generate",
        "constrain",
        "none, puzzle (what the puzzle still allows), {regex: …}, {choice: […]}, {json_schema: …} or {grammar: …}; default none",
    ),
    key("generate", "temperature", "0 (always the likeliest token) and up; default 0"),
    key("generate", "top_k", "sample among the k likeliest tokens; 0 is all; default all"),
    key("generate", "top_p", "sample among the likeliest tokens that make up this probability, 0 to 1; default all"),
    key(
        "generate",
        "min_p",
        "sample among tokens with at least this share of the likeliest one's probability, 0 to 1; default all",
    ),
    key("generate", "repetition_penalty", "above 1 makes tokens that are there already less likely; default 1"),
    key("generate", "max_tokens", "the longest a thought may be, in tokens; default 256"),
    key("generate", "stop", "a list of texts; a thought ends before the first of them"),
    key("generate", "thought", "step (a thought is one step of an answer) or answer (a whole one); default step"),
    key(
        "generate.constrain",
        "regex",
        "a regular expression that the whole thought matches; tokens that cannot lead to a match are not sampled",
    ),
    key("generate.constrain", "choice", "a list of texts, one of which the thought is"),
    key(
        "generate.constrain",
        "json_schema",
        "a JSON schema that the thought fits: a map, JSON after `|`, or a file; tokens that cannot lead to a fit are not sampled",
    ),
    key("generate.constrain", "grammar", "a grammar in llguidance's Lark that the thought fits: after `|`, or a file"),
    key("evaluate", "checker", "the puzzle's own check: partial (of a beginning) or whole (of an answer)"),
    key("evaluate", "value", "ask the model for a label of a thought, or for a number on a scale"),
    key(
        "evaluate",
        "yes_no",
        "ask the model a yes/no question of a thought; how likely yes is against no is read from the logits, nothing is sampled",
    ),
    key("evaluate", "vote", "ask the model which of a level's thoughts is best"),
    key(
        "evaluate",
        "logprob",
        "true: the probability of the thought's text, exp of the mean of its tokens' log-probabilities",
    ),
    key(
        "evaluate",
        "command",
        "a program that reads a thought as JSON and writes its score; runs with --allow-commands",
    ),
    key("evaluate.command", "run", "the program and its arguments, a list; no shell reads it"),
    key("evaluate.command", "seconds", "given up after so many seconds; default 10"),
    key("evaluate.value", "prompt", "as generate.prompt; `thought` is the one to judge"),
    key(
        "evaluate.value",
        "labels",
        "what the model may say, with a weight of 0 or more each; the score is the mean weight as a share of the largest",
    ),
    key("evaluate.value", "scale", "instead of labels: both ends of a scale, [0, 10]; the reply is a number on it"),
    key("evaluate.value", "n", "replies asked for; default 1"),
    key("evaluate.value", "format", "as generate.format"),
    key("evaluate.value", "max_tokens", "the longest a reply may be, in tokens; default 32"),
    key("evaluate.value", "temperature", "as generate.temperature; default 0"),
    key(
        "evaluate.yes_no",
        "prompt",
        "as generate.prompt; `thought` is the one to judge; it ends where the answer begins",
    ),
    key("evaluate.yes_no", "format", "as generate.format"),
    key("evaluate.yes_no", "yes", "spellings of yes, a list; default yes and Yes, with and without a space before"),
    key("evaluate.yes_no", "no", "spellings of no, a list; default no and No, with and without a space before"),
    key("evaluate.vote", "prompt", "as generate.prompt; `thoughts`, the list to choose from, is there too"),
    key("evaluate.vote", "n", "votes asked for; default 1"),
    key("evaluate.vote", "format", "as generate.format"),
    key("evaluate.vote", "max_tokens", "the longest a reply may be, in tokens; default 32"),
    key("evaluate.vote", "temperature", "as generate.temperature; default 0"),
    key("budget", "tokens", "tokens the model may compute"),
    key("budget", "thoughts", "thoughts the tree may hold"),
    key("budget", "seconds", "seconds the run may take"),
    key("budget", "kv", "K/V memory that may live at the same time, such as 256MiB"),
    key("offload", "method", "none, full, int4, h2o, infinigen or infinigen-tree"),
    key(
        "offload",
        "alpha",
        "fetch tokens whose expected score is within this of the largest; inf: as many as max_fetch; default 4",
    ),
    key("offload", "ratio", "share of a key's columns that scores are guessed by, 0 to 1; default 0.75"),
    key("offload", "max_fetch", "share of its path that a token may fetch in a layer, 0 to 1; default 0.2"),
    key(
        "offload",
        "capacity",
        "device memory that fetched rows may take, such as 64MiB; default what the budget leaves",
    ),
    key("offload", "eviction", "which fetched rows go for others: counter, fifo or lru; default counter"),
    key(
        "offload",
        "look",
        "whose query guesses a layer's scores: ahead, half or same; default ahead on a card, half on the CPU",
    ),
    key("offload", "whole_layers", "first layers that attend to everything; default measured once per model"),
];

/// Keys of a task's file; their levels begin with `task`, which is not shown.
pub const TASK_KEYS: &[Key] = &[
    key("task", "version", "version of this format: 1"),
    key("task", "name", "what the task is called"),
    key("task", "about", "one line about it, shown in lists"),
    key("task", "fields", "what a puzzle has, by name: `country: the country that is asked about`"),
    key("task", "question", "the question as a template over the fields: a text, a text after `|`, or a file"),
    key("task", "answer", "where the expected answer stands in data files, and what of a reply is the answer"),
    key(
        "task",
        "scorer",
        "how an answer is scored: exact, text, number, list or set compare with the expected one; {errors: EXPRESSION}; {command: PROGRAM}",
    ),
    key(
        "task",
        "examples",
        "solved puzzles: the fields and `answer` of each; prompts show them, the first is what `check` tries",
    ),
    key("task", "id", "column of the puzzles' ids in data files; without it they are numbered from 0"),
    key("task", "separator", "what stands between the fields of a typed puzzle; default `;`"),
    key("task", "len", "how many steps an answer takes at most: a number, or a template over the fields; default 1"),
    key("task", "title", "a puzzle in one line, as a template over the fields; default the question"),
    key("task", "steps", "the steps that are allowed next, one a line, as a template over the fields and `path`"),
    key(
        "task",
        "partial",
        "errors of a beginning, as an expression over the fields, `path` and `steps`; 0 or true: none",
    ),
    key(
        "task",
        "state",
        "when two beginnings are the same: text (the same words), folded (capitals aside), lines (in any order) or last (the last line); default text",
    ),
    key(
        "task",
        "strategy",
        "the strategy used when none is given: a built-in one or a file beside the task; default io",
    ),
    key("task.field", "about", "one line about the field"),
    key("task.field", "column", "its column in data files, or a list of names; default the field's own name"),
    key("task.answer", "column", "column of the expected answers in data files, or a list of names; default answer"),
    key(
        "task.answer",
        "pattern",
        "a regular expression; its last match in a reply is the answer, or its one group; default the whole reply",
    ),
    key(
        "task.scorer",
        "errors",
        "an expression over `answer`, `expected` and the fields: errors from 0 up, or true and false",
    ),
    key(
        "task.scorer",
        "command",
        "a program that reads the answer as JSON and writes its errors; runs with --allow-commands",
    ),
    key("task.command", "run", "the program and its arguments, a list; no shell reads it"),
    key("task.command", "seconds", "given up after so many seconds; default 10"),
];

/// The keys of the kind of file that a level is of.
fn table(level: &str) -> &'static [Key] {
    if level == "task" || level.starts_with("task.") { TASK_KEYS } else { KEYS }
}

/// A level as its file shows it.
pub fn shown(level: &str) -> &str {
    match level {
        "task" => "",
        level => level.strip_prefix("task.").unwrap_or(level),
    }
}

/// The key of that name at a level.
pub fn find(level: &str, name: &str) -> Option<&'static Key> {
    table(level).iter().find(|key| key.level == level && key.name == name)
}

/// Names other tools give to keys of ours: the level and name there, and what it is here.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("search", "kind", "policy"),
    ("search", "algorithm", "policy"),
    ("search", "beam", "keep"),
    ("search", "breadth", "keep"),
    ("search", "width", "keep"),
    ("search", "threshold", "prune_below"),
    ("generate", "samples", "n"),
    ("generate", "count", "n"),
];

/// The keys at a level.
pub fn at(level: &str) -> impl Iterator<Item = &'static Key> {
    table(level).iter().filter(move |key| key.level == level)
}

/// Names of the keys at a level.
pub fn names(level: &str) -> impl Iterator<Item = &'static str> + Clone {
    table(level).iter().filter(move |key| key.level == level).map(|key| key.name)
}

/// `under `search``, `at the top level`.
fn under(level: &str) -> String {
    if shown(level).is_empty() { "at the top level".to_string() } else { format!("under `{}`", shown(level)) }
}

/// What to tell of a key that is not known at `level`.
pub fn unknown(level: &str, name: &str) -> String {
    let here = under(level);
    let all = table(level);
    let branch = (level == "search" && matches!(name, "branch" | "branching" | "n")).then_some("generate");
    let mut home: Vec<&str> =
        all.iter().filter(|key| key.name == name && key.level != level).map(|key| key.level).collect();
    // The sections of a file come first; what levels and stages repeat of them is the same key.
    let section = |level: &&str| !level.contains('.') && !matches!(*level, "levels" | "stages");
    if home.iter().any(section) {
        home.retain(section);
    }
    let homes = || home.iter().map(|level| under(level)).collect::<Vec<_>>().join(" or ");
    let near = ELSEWHERE
        .iter()
        .find(|(at, other, _)| *at == level && *other == name)
        .map(|(_, _, ours)| *ours)
        .or_else(|| nearest(name, names(level)));
    if let Some(home) = branch {
        return format!("unknown key `{name}` {here}; proposals for each thought are `n` under `{home}`");
    }
    match (near, home.as_slice()) {
        (Some(near), []) => format!("unknown key `{name}` {here}; did you mean `{near}`?"),
        (None, [_, ..]) => format!("`{name}` does not belong {here}; it belongs {}", homes()),
        (Some(near), [_, ..]) => {
            format!("unknown key `{name}` {here}; did you mean `{near}`? (`{name}` itself belongs {})", homes())
        }
        (None, []) => {
            // Perhaps a slip of a key of another level.
            let far = all.iter().find(|key| nearest(name, [key.name]).is_some());
            let known = names(level).collect::<Vec<_>>().join(", ");
            match far {
                Some(key) if key.level != level => {
                    format!(
                        "unknown key `{name}` {here}; did you mean `{}` {}? known here: {known}",
                        key.name,
                        under(key.level)
                    )
                }
                _ => format!("unknown key `{name}` {here}; known here: {known}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_name_the_right_key_and_level() {
        let check = |level: &str, name: &str, part: &str| {
            let message = unknown(level, name);
            assert!(message.contains(part), "{message}");
        };
        check("search", "depht", "did you mean `depth`?");
        check("", "keep", "`keep` does not belong at the top level; it belongs under `search`");
        check("budget", "max_tokens", "did you mean `tokens`? (`max_tokens` itself belongs under `generate`)");
        check("search", "kind", "did you mean `policy`?");
        check("search", "branch", "`n` under `generate`");
        check("", "promt", "`prompt` under `generate`");
        check("", "zebra", "known here: version, name");
        check("generate", "task", "it belongs at the top level");
        check("", "stop", "it belongs under `search` or under `generate`");
        check("budget", "stop", "it belongs under `search` or under `generate`");
        check("evaluate.value", "seconds", "it belongs under `budget`");
        check("task", "filds", "did you mean `fields`?");
        check("task", "column", "it belongs under `field` or under `answer`");
        check("task", "keep", "known here: version");
    }

    #[test]
    fn no_key_stands_twice_in_the_table() {
        let all: Vec<&Key> = KEYS.iter().chain(TASK_KEYS).collect();
        for (at, key) in all.iter().enumerate() {
            assert!(!all[..at].iter().any(|k| (k.level, k.name) == (key.level, key.name)), "{key:?}");
        }
    }
}
