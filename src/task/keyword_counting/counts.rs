//! Countries in texts: named in generated ones, counted in any, and read from replies.

use crate::base::text::sanitize;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use regex::Regex;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Countries that texts may name; a longer name stands for itself where a shorter one is a part of it.
pub(super) const COUNTRIES: &str = "Afghanistan|Albania|Algeria|Andorra|Angola|Antigua and Barbuda|Argentina|Armenia|Australia|Austria|Azerbaijan|Bahamas|Bahrain|Bangladesh|Barbados|Belarus|Belgium|Belize|Benin|Bhutan|Bolivia|Bosnia and Herzegovina|Botswana|Brazil|Brunei|Bulgaria|Burkina Faso|Burundi|Cambodia|Cameroon|Canada|Cape Verde|Central African Republic|Chad|Chile|China|Colombia|Comoros|Congo|Costa Rica|Croatia|Cuba|Cyprus|Czech Republic|Denmark|Djibouti|Dominica|Dominican Republic|East Timor|Ecuador|Egypt|El Salvador|England|Equatorial Guinea|Eritrea|Estonia|Eswatini|Ethiopia|Fiji|Finland|France|Gabon|Gambia|Georgia|Germany|Ghana|Greece|Grenada|Guatemala|Guinea|Guinea-Bissau|Guyana|Haiti|Honduras|Hungary|Iceland|India|Indonesia|Iran|Iraq|Ireland|Israel|Italy|Ivory Coast|Jamaica|Japan|Jordan|Kazakhstan|Kenya|Kiribati|Kosovo|Kuwait|Kyrgyzstan|Laos|Latvia|Lebanon|Lesotho|Liberia|Libya|Liechtenstein|Lithuania|Luxembourg|Madagascar|Malawi|Malaysia|Maldives|Mali|Malta|Marshall Islands|Mauritania|Mauritius|Mexico|Micronesia|Moldova|Monaco|Mongolia|Montenegro|Morocco|Mozambique|Myanmar|Namibia|Nauru|Nepal|Netherlands|New Zealand|Nicaragua|Niger|Nigeria|North Korea|North Macedonia|Norway|Oman|Pakistan|Palau|Palestine|Panama|Papua New Guinea|Paraguay|Peru|Philippines|Poland|Portugal|Qatar|Romania|Russia|Rwanda|Saint Kitts and Nevis|Saint Lucia|Samoa|San Marino|Saudi Arabia|Scotland|Senegal|Serbia|Seychelles|Sierra Leone|Singapore|Slovakia|Slovenia|Solomon Islands|Somalia|South Africa|South Korea|South Sudan|Spain|Sri Lanka|Sudan|Suriname|Sweden|Switzerland|Syria|Taiwan|Tajikistan|Tanzania|Thailand|Togo|Tonga|Trinidad and Tobago|Tunisia|Turkey|Turkmenistan|Tuvalu|Uganda|Ukraine|United Arab Emirates|United Kingdom|United States|Uruguay|Uzbekistan|Vanuatu|Vatican City|Venezuela|Vietnam|Wales|Yemen|Zambia|Zimbabwe";

/// Countries that generated texts name: common ones, none part of another.
const USED: &[&str] = &[
    "Argentina",
    "Brazil",
    "Canada",
    "Chile",
    "China",
    "Denmark",
    "Egypt",
    "Finland",
    "France",
    "Germany",
    "Greece",
    "Iceland",
    "India",
    "Ireland",
    "Italy",
    "Japan",
    "Kenya",
    "Mexico",
    "Norway",
    "Peru",
    "Poland",
    "Portugal",
    "Spain",
    "Sweden",
    "Turkey",
    "South Korea",
    "New Zealand",
    "United States",
];

/// Sentences with places for two countries, the second one sometimes twice.
const SENTENCES: &[&str] = &[
    "Sarah flew from {a} to {b} in the spring.",
    "The train from {a} was late, so they missed the ferry to {b}.",
    "In {a} they tasted a bread that reminded them of {b}, and {b} seemed near.",
    "A friend from {a} told stories about the coast.",
    "The museum showed maps of {a} beside old coins from {b}.",
    "Having left {a}, he wrote letters to {a} for years.",
    "Nobody expected the music of {b} at a wedding in {a}.",
    "They compared the schools of {a} and {b} over dinner.",
];

/// Names as whole words, longer ones first.
static NAMES: LazyLock<Regex> = LazyLock::new(|| {
    let mut names: Vec<String> = COUNTRIES.split('|').map(regex::escape).collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    Regex::new(&format!(r"\b(?:{})\b", names.join("|"))).expect("a fixed pattern is valid")
});

/// Counts by country, in order of first appearance.
pub(super) type Counts = Vec<(String, u64)>;

/// So many sentences over a few countries, so that most come again.
pub(super) fn write(sentences: usize, rng: &mut impl Rng) -> String {
    let mut pool = USED.to_vec();
    pool.shuffle(rng);
    pool.truncate((sentences / 2 + 3).min(USED.len()));
    let mut text = Vec::with_capacity(sentences);
    for _ in 0..sentences {
        let pair: Vec<&&str> = pool.choose_multiple(rng, 2).collect();
        let sentence = SENTENCES[rng.random_range(0..SENTENCES.len())];
        text.push(sentence.replace("{a}", pair[0]).replace("{b}", pair[1]));
    }
    text.join(" ")
}

pub(super) fn add(counts: &mut Counts, name: &str, count: u64) {
    match counts.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = known.saturating_add(count),
        None => counts.push((name.to_string(), count)),
    }
}

/// The countries that a text names.
pub(super) fn count(text: &str) -> Counts {
    let mut counts = Counts::new();
    for found in NAMES.find_iter(text) {
        // A hyphen joins words: `Guinea` is not named by `Guinea-Bissau`, which is longer, nor by `Anglo-Guinea`.
        if !text[..found.start()].ends_with('-') {
            add(&mut counts, found.as_str(), 1);
        }
    }
    counts
}

/// The data's own column: `[Norway, Sweden, Norway]`.
pub(super) fn listed(text: &str) -> Option<Counts> {
    let inside = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut counts = Counts::new();
    for name in inside.split(',').map(|name| name.trim().trim_matches(['"', '\''])).filter(|name| !name.is_empty()) {
        add(&mut counts, name, 1);
    }
    Some(counts)
}

/// Counts from a reply: the last JSON object that holds nothing but counts, else the pairs `Name: 2` of its text. `none` stands
/// for no country. `None`: neither is there.
pub(super) fn said(reply: &str) -> Option<Counts> {
    let text = sanitize(reply);
    if let Some(found) = last_object(&text) {
        return Some(found);
    }
    static PAIR: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"([A-Z][A-Za-z' -]*[a-z])["'*]*\s*[:=]\s*(\d{1,9})"#).expect("a fixed pattern is valid")
    });
    let mut counts = Counts::new();
    for pair in PAIR.captures_iter(&text) {
        if let Ok(count) = pair[2].parse() {
            add(&mut counts, pair[1].trim(), count);
        }
    }
    let none = text.trim().trim_end_matches(['.', ',']).eq_ignore_ascii_case("none");
    (none || !counts.is_empty()).then_some(counts)
}

fn last_object(text: &str) -> Option<Counts> {
    let mut last = None;
    for (start, _) in text.match_indices('{') {
        let Some(end) = text[start..].find('}') else { break };
        let Ok(object) = serde_json::from_str::<Map<String, Value>>(&text[start..=start + end]) else { continue };
        let counts: Option<Counts> = object.iter().map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect();
        last = counts.or(last);
    }
    last
}

/// `Norway: 4, Sweden: 3`.
pub(super) fn written(counts: &Counts) -> String {
    counts.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ")
}
