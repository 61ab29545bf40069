//! The known name nearest to a mistyped one, for error messages.

/// The likeliest of `known` that was meant by `word`; `None` where nothing is near enough to be worth suggesting.
///
/// Near means few typing slips for the length (Damerau-Levenshtein: at most a third of the letters), or that one name
/// contains the other (`max_tokens` and `tokens`).
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    if word.chars().count() > 64 {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for name in known {
        let lower = name.to_lowercase();
        let slips = strsim::damerau_levenshtein(&word, &lower);
        let allowed = word.chars().count().max(lower.chars().count()).div_ceil(3);
        let contains = word.len() >= 3 && lower.len() >= 3 && (word.contains(&lower) || lower.contains(&word));
        let cost = match (slips <= allowed, contains) {
            (true, _) => slips,
            (false, true) => allowed + 1,
            (false, false) => continue,
        };
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, name));
        }
    }
    best.map(|(_, name)| name)
}

/// `; did you mean X?`, or nothing.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_and_parts_are_near_and_strangers_are_not() {
        let known = ["depth", "keep", "tokens", "set-intersection", "sorting"];
        let check = |word: &str, expected: Option<&str>| assert_eq!(nearest(word, known), expected, "{word}");
        check("depht", Some("depth"));
        check("Depth", Some("depth"));
        check("max_tokens", Some("tokens"));
        check("intersection", Some("set-intersection"));
        check("sort", Some("sorting"));
        check("zebra", None);
        check("", None);
        check(&"x".repeat(100_000), None);
    }
}
