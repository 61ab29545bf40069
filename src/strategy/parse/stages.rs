//! Reads `stages`: searches one after another, each over the levels below those of the one before. What a stage does not name
//! is as at the top level; the last stage is the strategy's own search.

use super::{Body, evaluate, finish, place, read_budget, read_generate, read_score, search};
use crate::strategy::compose::over_section;
use crate::strategy::expression::Expression;
use crate::strategy::read::{Fields, Reader};
use crate::strategy::yaml::{Node, Value};
use crate::strategy::{Count, Policy, Search, Stage, Strategy};

/// What was read of a strategy before.
pub struct Head {
    pub name: String,
    pub about: String,
    pub task: Option<String>,
}

pub fn read(r: &mut Reader, node: &Node, top: &Fields<'_>, head: Head) -> Option<Strategy> {
    let Value::List(items) = &node.value else {
        return r.refuse(node.span, "`stages` is a list, the first stage first; begin each with `- `");
    };
    if items.len() < 2 {
        return r.refuse(node.span, "one stage alone is the strategy itself; write its keys at the top level");
    }
    if top.get("levels").is_some() {
        r.error(place(top, "levels"), "a strategy has `levels` or `stages`: write each level as a stage of `depth: 1`");
    }
    let own = top.get("evaluate").map(|node| evaluate::read(r, node)).unwrap_or_default();
    let mut read = Vec::new();
    for item in items {
        let Some(fields) = r.fields(item, "stages", "a stage") else { continue };
        let joined = |name: &str| match (top.get(name), fields.get(name)) {
            (Some(below), Some(above)) => Some(over_section(below.clone(), above.clone())),
            (below, above) => above.or(below).cloned(),
        };
        let section = |r: &mut Reader, name: &str| match joined(name) {
            Some(node) => Some(node),
            None => r.refuse(fields.span, format!("this stage has no `{name}`, and there is none at the top level")),
        };
        let search = section(r, "search").and_then(|node| search::read(r, &node));
        let generate = section(r, "generate").and_then(|node| read_generate(r, &node));
        let evaluate = fields.get("evaluate").map_or_else(|| own.clone(), |node| evaluate::read(r, node));
        read.push((search?, generate?, evaluate, item));
    }
    let (search, generate, evaluate, _) = read.pop().filter(|_| read.len() + 1 == items.len())?;
    let mut stages = Vec::new();
    for (at, (search, generate, evaluate, item)) in read.into_iter().enumerate() {
        if let Some(why) = ends_the_run(&search) {
            r.error(items[at + 1].span, format!("stage {} is never reached: {why}", at + 2));
        }
        match search.depth {
            Count::Number(depth) => stages.push(Stage { depth, search, generate, evaluate }),
            Count::Template(_) => {
                r.error(
                    item.span,
                    "only the last stage's `depth` may be a template; give this stage a number of levels",
                );
            }
        }
    }
    for (at, search) in stages.iter().map(|stage| &stage.search).chain([&search]).enumerate() {
        let walks = matches!(search.policy, Policy::Bfs | Policy::Dfs | Policy::Beam { .. } | Policy::BestFirst { .. });
        // What ends a run before its last stage was told above.
        if !walks && (ends_the_run(search).is_none() || at == stages.len()) {
            r.error(items[at.min(items.len() - 1)].span, "a stage's policy is bfs, dfs, beam or best-first");
        }
    }
    let levels: Vec<crate::strategy::Level> = Vec::new();
    let mut score = None;
    for evaluate in stages.iter().map(|stage| &stage.evaluate).chain([&evaluate]) {
        score = top.get("score").and_then(|node| read_score(r, node, evaluate, &levels));
    }
    let budget = top.get("budget").map(|node| read_budget(r, node)).unwrap_or_default();
    finish(r, top, head, Body { search, generate, levels, stages, evaluate, score, budget })
}

/// Why nothing comes after a search of this kind.
fn ends_the_run(search: &Search) -> Option<String> {
    let always = |rule: &Option<Expression>| {
        let rule = rule.as_ref().filter(|rule| rule.names().is_empty())?;
        let holds = rule.truths(&[Vec::new()]).is_ok_and(|truths| truths == [Some(true)]);
        holds.then(|| rule.text().to_string())
    };
    if search.policy.chooses() {
        return Some("the stage before it ends the run with the answer that it chooses".into());
    }
    if let Some(text) = always(&search.stop).or_else(|| always(&search.accept)) {
        return Some(format!("`{text}` always holds and ends the run"));
    }
    always(&search.prune).map(|text| format!("`{text}` always holds, so that every thought before it is pruned"))
}
