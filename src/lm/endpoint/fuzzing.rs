//! Replies of a server nobody vouches for: whatever it answers becomes texts, numbers and messages, or an error.

use super::guide::Guide;
use super::{Kind, http, serve, wire};
use crate::base::choices::Choices;
use crate::base::text::sanitize_line;
use crate::lm::pattern::Pattern;
use crate::lm::{Constraint, Finish, Generate, Likelihood, Mode, Prompt, Sampling, StreamKey};
use serde_json::Value;
use std::sync::Arc;

/// The first bytes say what is asked, the rest is the body of the answer.
pub fn fuzz(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let (what, held, stops) = (choices.below(4), choices.below(3), choices.below(2));
    let body = choices.rest();
    let said = http::message_in(body);
    assert_eq!(said, sanitize_line(&said), "what a server says is one safe line");
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    if what == 0 {
        if let Ok(found) = wire::model(&value, None) {
            let _ = Kind::of(&found.owner);
        }
        return;
    }
    let Ok(reply) = wire::reply(&value, what == 1) else { return };
    let pattern = |text: &str| Pattern::new(text).ok().map(|p| Arc::new(p) as Arc<dyn Constraint>);
    let constraint = [None, pattern("[0-9]{1,3}"), pattern("a(b|c)*\u{e9}?")].into_iter().nth(held).flatten();
    let request = Generate {
        prompt: Prompt::completion("p"),
        mode: Mode::Sample,
        n: 2,
        sampling: Sampling::default(),
        max_tokens: 8,
        stop: [vec![], vec!["\n".to_string(), String::new()]][stops].clone(),
        constraint,
        likelihood: Likelihood::Model,
        key: StreamKey { seed: 1, puzzle: 0, node: 0 },
    };
    let usages = serve::usages(&reply, 1);
    assert_eq!(usages.len(), reply.choices.len());
    for (choice, usage) in reply.choices.into_iter().zip(usages) {
        let whole = choice.text.clone();
        let completion = serve::completion(choice, &request, usage);
        assert!(whole.starts_with(&completion.text), "a completion is a beginning of the reply");
        assert!(completion.logprobs.iter().all(|l| l.is_finite()) && completion.masked_logprob.is_finite());
        if stops == 1 {
            assert!(!completion.text.contains('\n'), "the stop text ends it");
        }
        if let (Some(rule), Finish::Stop(_)) = (&request.constraint, &completion.finish) {
            let _ = rule.judge(&completion.text);
        }
        // The texts go into grammars of later requests.
        for kind in [Kind::LlamaCpp, Kind::Vllm, Kind::SgLang, Kind::Other] {
            Guide::Choices(vec![completion.text.clone()]).write(kind, &mut |_, value| drop(value.to_string()));
        }
    }
}
