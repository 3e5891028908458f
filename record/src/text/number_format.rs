//! Numbers for text output: short and aligned.

pub use super::count::count;

/// Formats a rate in at most six characters: `98765`, `1235k`, `12.3M`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        value if value < 99_999.5 => format!("{value:.0}"),
        value if value < 9_999_500.0 => format!("{:.0}k", value / 1e3),
        value if value < 99_950_000.0 => format!("{:.1}M", value / 1e6),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// Formats a whole number with a comma between thousands.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time in milliseconds with about four digits.
pub fn milliseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.3}"),
        value if value < 100.0 => format!("{value:.2}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => thousands(value),
    }
}

/// Formats a share of 1 as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Formats a share of 1 as a bar of at most `width` characters; a small share is shown as `.`.
pub fn bar(share: f64, width: usize) -> String {
    let length = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    if length == 0 && share > 0.001 { ".".to_owned() } else { "#".repeat(length) }
}

/// Formats a quantity with a decimal prefix: `1.23 GB/s` for 1.23e9 and `B/s`.
pub fn scaled(value: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    let mut scaled = value;
    let mut index = 0;
    while scaled >= 999.5 && index + 1 < prefixes.len() {
        scaled /= 1e3;
        index += 1;
    }
    let decimals = match scaled {
        _ if index == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {}{unit}", prefixes[index])
}

/// Formats a number of bytes in MiB or, from 1 GiB on, in GiB: `1,234.50 GiB`.
pub fn binary(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 {
        return format!("{mebibytes:.1} MiB");
    }
    let hundredths = (mebibytes / 1024.0 * 100.0).round();
    let whole = (hundredths / 100.0).floor();
    format!("{}.{:02.0} GiB", thousands(whole), hundredths - 100.0 * whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stay_short() {
        let texts = [0.4, 99_999.4, 99_999.5, 1_234_567.0, 12_345_678.0, 1.5e8].map(rate);
        assert_eq!(texts, ["0", "99999", "100k", "1235k", "12.3M", "150M"]);
    }

    #[test]
    fn thousands_are_separated() {
        let texts = [0.0, 999.0, 1000.0, 1_234_567.4, -12_345.0].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567", "-12,345"]);
    }

    #[test]
    fn quantities_have_a_prefix() {
        let texts = [12.0, 999.6, 1.234e9, 5.6e10, 481e9].map(|value| scaled(value, "B/s"));
        assert_eq!(texts, ["12 B/s", "1.00 kB/s", "1.23 GB/s", "56.0 GB/s", "481 GB/s"]);
    }

    #[test]
    fn bytes_are_in_units_that_people_read() {
        let texts = [0, 7 << 19, 1 << 30, (3 << 29) + (1 << 22), 5_000 << 30].map(binary);
        assert_eq!(texts, ["0.0 MiB", "3.5 MiB", "1.00 GiB", "1.50 GiB", "5,000.00 GiB"]);
    }

    #[test]
    fn times_shares_and_counts() {
        let texts = [0.0421, 42.123, 421.23, 4212.3].map(milliseconds);
        assert_eq!(texts, ["0.042", "42.12", "421.2", "4,212"]);
        assert_eq!(percent(0.0816), "8.2%");
        assert_eq!([bar(0.5, 8), bar(0.01, 8), bar(0.0, 8)], ["####", ".", ""]);
        assert_eq!([count(1, "rank"), count(2, "rank")], ["1 rank", "2 ranks"]);
    }
}
