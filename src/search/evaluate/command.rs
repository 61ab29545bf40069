//! What a program says of a thought: one JSON value, a number from 0 to 1 or an object with `score` and perhaps `detail`.
//!
//! A program that fails, says nothing in time or something else gives no value, which is counted and shown.

use super::Part;
use serde_json::Value;

pub const NAME: &str = "command";

/// Reads a program's answer; an `Err` says why there is none.
pub fn judge(answer: Result<String, String>) -> Part {
    let read = answer.and_then(|text| {
        let value: Value =
            serde_json::from_str(text.trim()).map_err(|error| format!("its answer is no JSON: {error}"))?;
        let score = value.as_f64().or_else(|| value.get("score")?.as_f64());
        let score = score.ok_or("its answer is neither a number nor an object with a number `score`")?;
        let detail = value.get("detail").and_then(Value::as_str).unwrap_or_default().to_string();
        Ok((score, detail))
    });
    match read {
        Ok((score, detail)) if (0.0..=1.0).contains(&score) => Part::of(NAME, score, detail),
        Ok((score, _)) => Part::missing(NAME, format!("its score {score} is not from 0 to 1"), 1),
        Err(why) => Part::missing(NAME, why, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_an_object_with_a_score_counts_and_nothing_else() {
        let value = |text: &str| judge(Ok(text.into())).value;
        assert_eq!(value("0.5\n"), Some(0.5));
        let part = judge(Ok(r#"{"score": 1, "detail": "fine"}"#.into()));
        assert_eq!((part.value, part.detail.as_str()), (Some(1.0), "fine"));
        for bad in ["", "good", "1.5", "-0.1", "\"0.5\"", "{}", "[0.5]", "0.5 0.5"] {
            assert_eq!((value(bad), judge(Ok(bad.into())).invalid), (None, 1), "{bad}");
        }
        assert_eq!(judge(Err("no answer within 1 seconds".into())).value, None);
    }
}
