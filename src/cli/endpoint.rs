//! `--endpoint`: from flags to a server, and which strategies it can run. What it cannot is refused before anything runs.

use super::args::{Common, EndpointArgs};
use crate::base::{Error, Result};
use crate::lm::endpoint::{Abilities, Endpoint, EndpointOptions, check_address, key_from_environment};
use crate::lm::{Format, GrammarForm};
use crate::strategy::{Constrain, Evaluator, Generate, GenerateKind, Strategy, Thought};
use std::sync::Arc;
use std::time::Duration;

/// Requests in flight at once where one puzzle is solved; a batch has as many as puzzles.
pub const CONNECTIONS: usize = 8;

/// The server that the flags name; `None` without one.
pub fn open(common: &Common, args: &EndpointArgs, connections: usize) -> Result<Option<Arc<Endpoint>>> {
    let Some(url) = &args.endpoint else { return Ok(None) };
    check(common, args)?;
    let mut options = EndpointOptions::new(url);
    options.model = common.model.clone();
    options.connections = connections;
    options.key = key_from_environment(url);
    if let Some(seconds) = args.endpoint_timeout {
        options.timeout = Duration::from_secs_f64(seconds);
    }
    Endpoint::open(options).map(Some)
}

/// Refuses flags that are the server's business, and values that mean nothing.
pub fn check(common: &Common, args: &EndpointArgs) -> Result<()> {
    if let Some(s) = args.endpoint_timeout.filter(|s| !s.is_finite() || *s <= 0.0 || *s > 1e6) {
        return Err(Error::input(format!("--endpoint-timeout {s} is not a number of seconds above 0")));
    }
    if let Some(url) = &args.endpoint {
        check_address(url)?;
    }
    let own = [
        ("--device", common.device != "auto"),
        ("--threads", common.threads.is_some()),
        ("--kv-budget", common.kv_budget.is_some()),
        ("--attention", common.attention != "auto"),
        ("--chat-template", common.chat_template.is_some()),
        ("--model-dir", common.model_dir.is_some()),
    ];
    match own.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Error::input(format!(
            "{flag} is about our own engine, and --endpoint runs on a server: leave one of them out"
        ))),
        None => Ok(()),
    }
}

/// Whether the server can run this strategy.
///
/// # Errors
/// It cannot: what of the strategy needs what the server has not.
pub fn fits(strategy: &Strategy, able: Abilities) -> Result<()> {
    let server = able.kind.name();
    let refuse = |what: String| Err(Error::input(format!("strategy `{}` on the endpoint: {what}", strategy.name)));
    for generate in strategy.generators() {
        if let Some(why) = cannot(generate, able) {
            return refuse(format!("{why}, which {server} does not offer"));
        }
    }
    for evaluator in strategy.evaluators() {
        match evaluator {
            Evaluator::YesNo { .. } if !able.scores() => {
                return refuse(format!(
                    "`yes_no` needs the log-probabilities of given texts, which {server} does not tell; use `value` with \
                     labels, or our own engine"
                ));
            }
            Evaluator::YesNo { format, .. } if *format != Some(Format::Completion) => {
                return refuse(format!(
                    "`yes_no` in a chat needs log-probabilities within an assistant's turn, which {server} does not tell; \
                     write `format: completion` under `yes_no`"
                ));
            }
            _ => {}
        }
    }
    if !able.logprobs && strategy.evaluators().any(|evaluator| matches!(evaluator, Evaluator::Logprob)) {
        return refuse(format!("`logprob` needs log-probabilities, which {server} does not tell"));
    }
    Ok(())
}

/// What of a way to make thoughts is beyond a server.
fn cannot(generate: &Generate, able: Abilities) -> Option<String> {
    let lists = match (&generate.constrain, generate.thought) {
        (Constrain::Puzzle, Thought::Step) | (Constrain::Choice(_), _) => true,
        (Constrain::Puzzle, Thought::Answer) => {
            return Some("`constrain: puzzle` of whole answers needs a mask over tokens".into());
        }
        (Constrain::Grammar(GrammarForm::Lark(_)), _) => {
            return Some("`constrain: {grammar: …}` needs llguidance's grammars".into());
        }
        (Constrain::None | Constrain::Regex(_) | Constrain::Grammar(_), _) => false,
    };
    let sampling = &generate.sampling;
    let samplers =
        sampling.top_k.is_some_and(|k| k > 0) || sampling.min_p.is_some() || sampling.repetition_penalty != 1.0;
    match generate.kind {
        // Nothing is asked of the model.
        GenerateKind::Random => None,
        // Lines are looked at when the reply is there.
        GenerateKind::Propose if samplers && !able.samplers() => {
            Some("`top_k`, `min_p` and `repetition_penalty` are beyond OpenAI's API".into())
        }
        GenerateKind::Propose => None,
        GenerateKind::Likeliest if !lists => {
            Some("`kind: likeliest` without a list of texts needs the ranks of all tokens".into())
        }
        _ if (lists || matches!(generate.constrain, Constrain::Regex(_) | Constrain::Grammar(_))) && !able.guides() => {
            Some("`constrain` needs a grammar".into())
        }
        _ if samplers && !able.samplers() => {
            Some("`top_k`, `min_p` and `repetition_penalty` are beyond OpenAI's API".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::endpoint::Kind;
    use crate::strategy::{LoadOptions, load_with};

    #[test]
    fn shipped_strategies_run_on_known_servers_and_unknown_ones_are_told_apart() {
        let able = |kind| Abilities { kind, logprobs: true, usage: true };
        let check = |name: &str, kind: Kind| {
            let strategy = load_with(name, "sorting", &LoadOptions::default()).unwrap();
            fits(&strategy, able(kind)).map_err(|e| e.message().to_string())
        };
        for name in ["io", "cot", "best-of-n", "tot-bfs", "tot-dfs", "got", "beam", "mcts", "best-first", "cot-sc"] {
            for kind in [Kind::LlamaCpp, Kind::Vllm, Kind::SgLang] {
                assert_eq!(check(name, kind), Ok(()), "{name} {kind:?}");
            }
        }
        assert_eq!(check("io", Kind::Other), Ok(()));
        for name in ["tot-bfs", "best-of-n"] {
            let why = check(name, Kind::Other).unwrap_err();
            assert!(why.contains(name) && why.contains("grammar") && why.contains("unknown server"), "{why}");
        }
        let mut asked = load_with("tot-bfs", "sorting", &LoadOptions::default()).unwrap();
        let yes_no = |format| Evaluator::YesNo {
            prompt: asked.generate.prompt.clone(),
            format,
            yes: vec!["yes".into()],
            no: vec!["no".into()],
        };
        let (plain, chat) = (yes_no(Some(Format::Completion)), yes_no(None));
        asked.evaluate = vec![plain];
        assert!(fits(&asked, able(Kind::Vllm)).is_ok());
        assert!(fits(&asked, able(Kind::LlamaCpp)).is_err_and(|e| e.message().contains("llama.cpp does not tell")));
        asked.evaluate = vec![chat];
        assert!(fits(&asked, able(Kind::Vllm)).is_err_and(|e| e.message().contains("format: completion")));
        let best = load_with("best-of-n", "sorting", &LoadOptions::default()).unwrap();
        let silent = Abilities { logprobs: false, ..able(Kind::Vllm) };
        assert!(fits(&best, silent).is_err_and(|e| e.message().contains("log-probabilities")));
    }
}
