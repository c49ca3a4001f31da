//! Sizes as people write them.

/// `1024`, `16k`, `1m`, `1MiB`: bytes. None if it is no size.
pub fn parse(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

/// A size for people, binary units.
pub fn show(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// An amount for people, decimal units.
pub fn amount(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", b / 1e9),
        1_000_000.. => format!("{:.1} MB", b / 1e6),
        1000.. => format!("{:.1} kB", b / 1e3),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("1024", 1024), ("1k", 1024), ("16K", 16_384), ("64KiB", 65_536), ("1m", 1 << 20), ("1g", 1 << 30)]
        {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for wrong in ["", "k", "1x", "-1", "1.5k", "0", "99999999999999999999", "99999999999g", "1k1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!((show(1024), show(1 << 22), show(1000)), ("1 KiB".into(), "4 MiB".into(), "1000 B".into()));
        assert_eq!((amount(1), amount(1500), amount(2_500_000_000)), ("1 B".into(), "1.5 kB".into(), "2.5 GB".into()));
    }
}
