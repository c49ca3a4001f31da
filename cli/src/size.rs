//! Numbers of bytes, as people write and read them.

/// Why a word is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not digits, or an unknown suffix.
    #[error("\"{0}\" is not a number of bytes: write digits, and k, m or g behind them if you like (1k = 1024)")]
    NotANumber(String),
    /// More than 64 bits hold.
    #[error("\"{0}\" is more than 64 bits hold")]
    TooLarge(String),
}

/// Parses `65536`, `64k`, `3M`, `1g`.
pub fn parse(word: &str) -> Result<u64, SizeError> {
    let (digits, shift) = match word.as_bytes().last() {
        Some(b'k' | b'K') => (&word[..word.len() - 1], 10),
        Some(b'm' | b'M') => (&word[..word.len() - 1], 20),
        Some(b'g' | b'G') => (&word[..word.len() - 1], 30),
        _ => (word, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SizeError::NotANumber(word.to_owned()));
    }
    let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge(word.to_owned()))?;
    number.checked_mul(1 << shift).ok_or_else(|| SizeError::TooLarge(word.to_owned()))
}

/// `1.5 GiB`, three digits at most.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (word, bytes) in [("0", 0), ("64", 64), ("1k", 1024), ("3M", 3 << 20), ("2g", 2 << 30)] {
            assert_eq!(parse(word), Ok(bytes), "{word}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for word in ["", "k", "-1", "1.5k", "1kb", " 1", "+1", "１"] {
            assert!(matches!(parse(word), Err(SizeError::NotANumber(_))), "{word}");
        }
        for word in ["99999999999999999999", "17179869184g"] {
            assert!(matches!(parse(word), Err(SizeError::TooLarge(_))), "{word}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_239, "10.0 KiB"),
            (300 << 10, "300 KiB"),
            (1_048_575, "1.00 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
