//! Bytes read as choices: how a fuzzer, or a random test, steers a target that takes more than one file's bytes. Any
//! bytes are valid; where they end everything is zero.

pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    pub fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let number = if n > 256 { usize::from(self.number()) } else { usize::from(self.byte()) };
        number % n.max(1)
    }

    /// At most that many bytes, fewer as the next byte says.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let len = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    /// Text of at most that many bytes; what is not UTF-8 is replaced.
    pub fn text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.bytes(most)).into_owned()
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Choices;

    #[test]
    fn every_byte_is_used_once_and_the_end_is_zeros() {
        let mut choices = Choices::new(&[7, 1, 2, 3, b'a', b'b', b'c', 9]);
        assert_eq!((choices.byte(), choices.number(), choices.below(4)), (7, 0x201, 3));
        // `a` is 97: 97 modulo 3 is 1.
        assert_eq!((choices.text(2).as_str(), choices.rest()), ("b", &[b'c', 9][..]));
        assert!(choices.is_done());
        assert_eq!((choices.byte(), choices.number(), choices.below(9), choices.text(9).as_str()), (0, 0, 0, ""));
    }
}
