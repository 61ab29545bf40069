//! Texts held to a JSON schema or to a context-free grammar: llguidance's parser, fed with our own vocabulary.
//!
//! | where | what it walks over |
//! |---|---|
//! | the engine's masks ([`Machine`] of a [`Lexicon`]) | the model's tokens, all of them at once |
//! | [`Grammar::judge`], for whoever has no masks: a script, chance, an endpoint's reply | bytes |
//!
//! A schema's values are written on one line with one space after `,` and `:`, so that a model cannot fill its tokens with
//! blanks; a text that is only judged may have any white space that JSON allows. Grammars are written as llguidance's
//! variant of Lark (`start: "a" /[0-9]+/`). Not every keyword of JSON Schema can be held to while a text grows; one that
//! cannot is refused by its name when the constraint is made. Schemas refer to their own parts alone (`#/$defs/…`).

use super::constraint::{Constraint, Judgement, Mask, ending_tokens};
use super::text::Stops;
use super::vocab::Vocab;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Bytes of a token that the trie takes; no vocabulary has longer ones that a constrained text needs.
const LONGEST_TOKEN: usize = 1000;

/// What texts are held to, as it was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// A JSON schema.
    Json(Value),
    /// A grammar in llguidance's Lark.
    Lark(String),
}

/// A compiled constraint.
pub struct Grammar {
    form: Form,
    /// Over bytes, for judging whole texts. Behind a lock, because it goes on from the text it saw last.
    judge: Mutex<Machine>,
}

/// What a vocabulary is to parsers: made once, used by all requests.
#[derive(Clone)]
pub struct Lexicon(Arc<ParserFactory>);

impl std::fmt::Debug for Lexicon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lexicon")
    }
}

/// One byte, one token.
static BYTES: LazyLock<Result<Lexicon, String>> =
    LazyLock::new(|| Lexicon::new(&ApproximateTokEnv::single_byte_env(), &[]));

impl Lexicon {
    /// Over a model's tokens, with one more id that stands for the end.
    ///
    /// # Errors
    /// The parser library refuses the vocabulary.
    pub fn of(vocab: &Vocab) -> Result<Self, String> {
        // Bytes that begin with 0xFF mark control tokens in the library's tries; text is UTF-8 and has none.
        let usable = |piece: &[u8]| piece.first() != Some(&0xFF) && piece.len() <= LONGEST_TOKEN;
        let piece = |id: u32| Some(vocab.bytes(id)).filter(|piece| usable(piece)).unwrap_or_default().to_vec();
        let mut words: Vec<Vec<u8>> = (0..vocab.len() as u32).map(piece).collect();
        words.push(b"\xFF<end>".to_vec());
        let info = TokRxInfo::new(words.len() as u32, vocab.len() as u32);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        Self::new(&env, &llguidance::earley::SlicedBiasComputer::general_slices())
    }

    fn new(env: &TokEnv, slices: &[String]) -> Result<Self, String> {
        let factory = ParserFactory::new(env, InferenceCapabilities::default(), slices);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self(Arc::new(factory)))
    }
}

/// A parser and the text it has seen.
pub struct Machine {
    lexicon: Lexicon,
    fresh: Matcher,
    matcher: Matcher,
    /// Tokens of what was seen, each with the length of the text up to and with it.
    seen: Vec<usize>,
    text: Vec<u8>,
}

impl Machine {
    fn new(form: &Form, lexicon: Lexicon, spaced: bool) -> Result<Self, String> {
        let top = match form {
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Form::Json(schema) => {
                let mut schema = schema.clone();
                if spaced {
                    JsonCompileOptions { lenient: false, ..JsonCompileOptions::default() }.apply_to(&mut schema);
                } else {
                    JsonCompileOptions {
                        item_separator: ", ".into(),
                        key_separator: ": ".into(),
                        whitespace_flexible: false,
                        lenient: false,
                        ..JsonCompileOptions::default()
                    }
                    .apply_to(&mut schema);
                }
                TopLevelGrammar::from_json_schema(schema)
            }
        };
        let parser = lexicon.0.create_parser_from_init(GrammarInit::Serialized(top), 0, 0);
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(Self { lexicon, fresh: matcher.clone(), matcher, seen: Vec::new(), text: Vec::new() }),
        }
    }

    /// Goes to `text`; how many of its bytes the grammar takes.
    ///
    /// # Errors
    /// The parser gave up: the grammar asks for too much work.
    fn go_to(&mut self, text: &[u8]) -> Result<usize, String> {
        let common = self.text.iter().zip(text).take_while(|(a, b)| a == b).count();
        let keep = self.seen.partition_point(|&end| end <= common);
        let gone = self.seen.len() - keep;
        if gone > 0 && (self.matcher.is_error() || self.matcher.rollback(gone).is_err()) {
            self.matcher = self.fresh.clone();
            self.seen.clear();
        } else {
            self.seen.truncate(keep);
        }
        let from = self.seen.last().copied().unwrap_or(0);
        self.text.truncate(from);
        let trie = self.lexicon.0.tok_env().tok_trie();
        for token in trie.greedy_tokenize(&text[from..]) {
            let taken = self.matcher.try_consume_tokens(&[token]);
            if taken.map_err(|error| brief(&error.to_string()))? == 0 {
                // Within the token a shorter part may still fit; who asks by tokens asks for whole ones.
                break;
            }
            self.text.extend_from_slice(trie.token(token));
            self.seen.push(self.text.len());
        }
        Ok(self.text.len())
    }

    /// The tokens that may follow `text`; none where nothing may, or where the parser gave up.
    pub fn mask(&mut self, vocab: &Vocab, stops: &Stops, text: &[u8]) -> Mask {
        let nothing = Mask { allowed: Vec::new(), ends: Vec::new() };
        if !self.go_to(text).is_ok_and(|taken| taken == text.len()) {
            return nothing;
        }
        let Ok(complete) = self.matcher.is_accepting() else { return nothing };
        let Ok(set) = self.matcher.compute_mask_or_eos() else { return nothing };
        let mut allowed = set.to_list();
        allowed.retain(|&id| (id as usize) < vocab.len() && !vocab.bytes(id).is_empty());
        let mut ends = Vec::new();
        if complete {
            ends = ending_tokens(vocab, stops);
            ends.retain(|id| allowed.binary_search(id).is_err());
            allowed.extend_from_slice(&ends);
            allowed.sort_unstable();
        }
        Mask { allowed, ends }
    }
}

impl Grammar {
    /// Compiles a schema or a grammar.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(form: Form) -> Result<Self, String> {
        let lexicon = BYTES.clone()?;
        // What is sampled is written more narrowly; that must compile as well.
        Machine::new(&form, lexicon.clone(), false).map_err(|error| brief(&error))?;
        let judge = Machine::new(&form, lexicon, true).map_err(|error| brief(&error))?;
        Ok(Self { form, judge: Mutex::new(judge) })
    }

    pub fn form(&self) -> &Form {
        &self.form
    }

    /// A parser over a vocabulary.
    ///
    /// # Errors
    /// As [`Grammar::new`].
    pub fn machine(&self, lexicon: &Lexicon) -> Result<Machine, String> {
        Machine::new(&self.form, lexicon.clone(), false)
    }
}

impl Constraint for Grammar {
    fn judge(&self, text: &str) -> Judgement {
        let what = match &self.form {
            Form::Json(_) => "the JSON schema",
            Form::Lark(_) => "the grammar",
        };
        let mut machine = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        match machine.go_to(text.as_bytes()) {
            Ok(taken) if taken == text.len() => match machine.matcher.is_accepting() {
                Ok(true) if machine.matcher.is_stopped() => Judgement::Closed,
                Ok(complete) => Judgement::Open { complete },
                Err(error) => Judgement::Dead(brief(&error.to_string())),
            },
            Ok(taken) => {
                let rest: String = String::from_utf8_lossy(&text.as_bytes()[taken..]).chars().take(10).collect();
                Judgement::Dead(format!("{what} does not allow `{rest}` after {taken} bytes"))
            }
            Err(error) => Judgement::Dead(error),
        }
    }

    fn grammar(&self) -> Option<&Grammar> {
        Some(self)
    }
}

/// The first line of the library's message.
fn brief(message: &str) -> String {
    message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it cannot be read").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn grammar(text: &str) -> Grammar {
        Grammar::new(Form::Lark(text.into())).unwrap()
    }

    fn person() -> Grammar {
        let schema = json!({"type": "object", "properties": {
            "name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer", "minimum": 0}}, "ok": {"enum": [true, null, "é"]}
        }, "required": ["name", "ages"], "additionalProperties": false});
        Grammar::new(Form::Json(schema)).unwrap()
    }

    #[test]
    fn every_beginning_of_a_fitting_text_is_open_and_nothing_else() {
        let rule = person();
        let good = r#"{"name": "Zoë \"Z\"", "ages": [1, 20], "ok": "é"}"#;
        for (at, _) in good.char_indices() {
            assert_eq!(rule.judge(&good[..at]), Judgement::Open { complete: false }, "{}", &good[..at]);
        }
        assert_eq!(rule.judge(good), Judgement::Closed);
        assert_eq!(rule.judge("{\n \"name\":\"\",\"ages\":[]}"), Judgement::Closed, "white space is judged kindly");
        for bad in ["[", "{\"nome", "{\"name\": 1", "{\"name\": \"\", \"ages\": [-", "{\"name\": \"\"}", "x"] {
            assert!(matches!(rule.judge(bad), Judgement::Dead(_)), "{bad}");
        }
        let rule = grammar("start: item (\",\" item)*\nitem: /[a-z]/ | \"(\" start \")\"");
        assert_eq!(rule.judge("(a,(b)),c"), Judgement::Open { complete: true });
        assert!(matches!(rule.judge("(a))"), Judgement::Dead(why) if why.contains("after 3 bytes")));
    }

    #[test]
    fn what_cannot_be_held_to_is_refused_in_one_line() {
        for (form, part) in [
            (Form::Json(json!({"type": "strng"})), "strng"),
            (Form::Json(json!({"type": "integer", "minimum": 3, "maximum": 2})), "nsatisfiable"),
            (Form::Json(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
            (Form::Json(json!({"$ref": "https://example.org/x.json"})), "$ref"),
            (Form::Lark("start: foo".into()), "foo"),
            (Form::Lark("begin: \"a\"".into()), "start"),
            (Form::Lark("start: \"a".into()), ""),
        ] {
            let why = Grammar::new(form.clone()).err().unwrap_or_else(|| panic!("{form:?} was taken"));
            assert!(why.contains(part) && !why.contains('\n') && !why.is_empty(), "{form:?}: {why}");
        }
    }

    fn vocab() -> Vocab {
        let pieces: Vec<Vec<u8>> = [
            "",
            "a",
            "b",
            "ab",
            "(",
            ")",
            "(a",
            "),",
            ",",
            ",(",
            "\"",
            "{",
            "}",
            "{\"",
            "name",
            "name\": \"",
            "\": ",
            " ",
            "[",
            "]",
            "[1",
            "1",
            "20",
            ", ",
            "ages",
            "é",
            "\n",
            "))",
            "a,b",
            "ok",
        ]
        .iter()
        .map(|piece| piece.as_bytes().to_vec())
        .chain([vec![0xC3], vec![0xA9], vec![0xFF]])
        .collect();
        Vocab::new(pieces, vec![0])
    }

    /// The mask by asking for each token whether its bytes may follow.
    fn reference(grammar: &Grammar, vocab: &Vocab, text: &[u8]) -> Vec<u32> {
        let may = |bytes: &[u8]| {
            let mut machine = grammar.machine(&BYTES.clone().unwrap()).unwrap();
            machine.go_to(bytes).is_ok_and(|taken| taken == bytes.len())
        };
        let writes = |id: &u32| !vocab.bytes(*id).is_empty();
        (0..vocab.len() as u32).filter(writes).filter(|&id| may(&[text, vocab.bytes(id)].concat())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever texts are asked about in whatever order, the masks are those of a parser that sees each text alone.
        #[test]
        fn masks_are_those_of_bytes_whatever_was_asked_before(
            lark in any::<bool>(), picks in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4), 1..12)
        ) {
            let grammar =
                if lark { grammar("start: item (\",\" item)*\nitem: /[ab]+/ | \"(\" start \")\"") } else { person() };
            let vocab = vocab();
            let mut machine = grammar.machine(vocab.lexicon().unwrap()).unwrap();
            let mut text: Vec<u8> = Vec::new();
            let mut ends = vec![0];
            for (pick, back) in picks {
                // Samples of one request take turns, so a text may be a beginning of an earlier one.
                for _ in 0..back.min(ends.len() - 1) {
                    ends.pop();
                }
                text.truncate(*ends.last().unwrap());
                let mask = machine.mask(&vocab, &Stops::default(), &text);
                let expected = reference(&grammar, &vocab, &text);
                let written: Vec<u32> = mask.allowed.iter().copied().filter(|id| !mask.ends.contains(id)).collect();
                prop_assert_eq!(&written, &expected, "{:?}", String::from_utf8_lossy(&text));
                if written.is_empty() {
                    break;
                }
                text.extend_from_slice(vocab.bytes(written[pick.index(written.len())]));
                ends.push(text.len());
            }
        }

        #[test]
        fn any_schema_or_grammar_is_read_without_panic(text in "\\PC{0,60}", keyword in "[a-zA-Z]{1,12}") {
            let _ = Grammar::new(Form::Lark(text.clone()));
            let _ = Grammar::new(Form::Lark(format!("start: {text}")));
            let _ = Grammar::new(Form::Json(json!({keyword.clone(): text.clone()})));
            let _ = Grammar::new(Form::Json(json!({"type": "object", "properties": {text: {"type": keyword}}})));
        }
    }
}
