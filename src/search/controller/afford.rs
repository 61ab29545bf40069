//! Keeping to the token budget: what requests will compute is asked before they are sent, and what they may draw is bounded.
//!
//! Exact while the run is alone on its model. It can still be overrun by what nobody knows beforehand: prompts that are
//! computed again because K/V memory ran short, or because another search of the same batch had them evicted.

use super::Controller;
use super::budget::share;
use super::flight::Ask;
use crate::lm::{Cost, Generate};
use crate::search::event::Reason;

/// More tokens than a chat template and a beginning-of-text token add to a prompt's own text. A token of text has at least
/// a byte.
const TEMPLATE_TOKENS: u64 = 512;

impl Controller {
    /// Those of the asks, from the first on, that can be sent within the token budget, their samples bounded so that they
    /// keep to it together; and the reason for the run to end after them, where some are left out.
    pub(super) async fn afford(&mut self, mut asks: Vec<Ask>) -> (Vec<Ask>, Option<Reason>) {
        let Some((left, limit)) = self.ledger.tokens_left().zip(self.ledger.limits.tokens) else { return (asks, None) };
        if asks.iter().map(|ask| at_most(&ask.generate)).fold(0, u64::saturating_add) <= left {
            return (asks, None);
        }
        let costs = self.costs(&asks.iter().map(|ask| &ask.generate).collect::<Vec<_>>()).await;
        let (sent, each) = share(&costs, left);
        let out = (sent < asks.len()).then_some(Reason::Tokens { limit });
        asks.truncate(sent);
        for ask in &mut asks {
            let most = usize::try_from(each).unwrap_or(usize::MAX);
            ask.generate.max_tokens = ask.generate.max_tokens.min(most);
        }
        (asks, out)
    }

    /// Whether requests that draw nothing fit, with `more` tokens beside their prompts; else the reason to end.
    pub(super) async fn affords(&mut self, requests: &[&Generate], more: u64) -> Option<Reason> {
        let (left, limit) = self.ledger.tokens_left().zip(self.ledger.limits.tokens)?;
        let fixed: u64 = self.costs(requests).await.iter().map(|cost| cost.fixed).sum();
        (fixed + more > left).then_some(Reason::Tokens { limit })
    }

    async fn costs(&self, requests: &[&Generate]) -> Vec<Cost> {
        let costs = self.lm.costs(requests).await;
        // A model that is gone says so when it is asked for more than a cost.
        costs.unwrap_or_else(|_| vec![Cost::default(); requests.len()])
    }
}

/// More than a request can compute, found without counting tokens.
fn at_most(request: &Generate) -> u64 {
    let choices = request.constraint.as_ref().and_then(|rule| rule.choices()).unwrap_or_default();
    let listed: u64 = choices.iter().map(|text| text.len() as u64).sum();
    let drawn = (request.n as u64).saturating_mul(request.max_tokens as u64);
    (request.prompt.full_text().len() as u64 + TEMPLATE_TOKENS + listed).saturating_add(drawn)
}
