//! Loss curves, on a terminal and as SVG.

use std::fmt::Write;
use std::ops::Range;

use tallow_models::train::History;

/// Extents of the curve on a terminal, in characters of two by four dots.
const COLUMNS: usize = 64;
const ROWS: usize = 12;
/// The first character of Unicode's block of patterns of eight dots.
const BLANK: u32 = 0x2800;
/// Bits of the dots of a character: by row, left and right.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Extents of the picture and of the place for the curve in it, in pixels.
const WIDTH: usize = 720;
const HEIGHT: usize = 400;
const X: Range<f64> = 60.0..700.0;
const Y: Range<f64> = 20.0..350.0;
/// Lines of the grid in each direction, and the most points of the curve.
const LINES: usize = 5;
const POINTS: usize = 640;

/// The training losses as characters, or nothing where there are none.
pub fn text(history: &History) -> String {
    let Some((low, high)) = range(history) else { return String::new() };
    let (width, height) = (2 * COLUMNS, 4 * ROWS);
    let mut cells = vec![[BLANK; COLUMNS]; ROWS];
    let points = averages(&history.losses, width);
    for column in 0..width {
        let share = (high - between(&points, column as f64 / (width - 1) as f64)) / (high - low);
        let row = ((share * (height - 1) as f64).round() as usize).min(height - 1);
        cells[row / 4][column / 2] |= DOTS[row % 4][column % 2];
    }
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let label = match row {
            0 => format!("{high:.2}"),
            _ if row == ROWS - 1 => format!("{low:.2}"),
            _ => String::new(),
        };
        let line: String = cells.iter().filter_map(|cell| char::from_u32(*cell)).collect();
        let _ = writeln!(text, "{label:>8} {}", line.trim_end_matches('\u{2800}'));
    }
    let steps = history.losses.len();
    let _ = writeln!(text, "{:>8} step 1 {steps:>width$}", "", width = COLUMNS - 7);
    text
}

/// The losses as a picture: training as a line, validation as a line with points.
pub fn svg(history: &History) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let (low, high) = range(history).unwrap_or((0.0, 1.0));
    let steps = history.losses.len().max(1);
    let x = |share: f64| X.start + share * (X.end - X.start);
    let y = |loss: f64| Y.start + (high - loss) / (high - low) * (Y.end - Y.start);
    for line in 0..=LINES {
        let share = line as f64 / LINES as f64;
        let (loss, step) = (low + share * (high - low), 1.0 + share * (steps - 1) as f64);
        let (x, y) = (x(share), y(loss));
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {y:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.2}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step:.0}</text>",
            X.start,
            X.end,
            X.start - 6.0,
            y + 4.0,
            Y.end + 18.0,
        );
    }
    let path = |points: &[(f64, f32)]| {
        let points: Vec<String> =
            points.iter().map(|(at, loss)| format!("{:.1},{:.1}", x(*at), y(f64::from(*loss)))).collect();
        points.join(" ")
    };
    let training = averages(&history.losses, POINTS);
    let share = |step: usize| (step - 1) as f64 / (steps - 1).max(1) as f64;
    let validation: Vec<(f64, f32)> =
        history.validation.iter().map(|(step, loss)| (share((*step).max(1)), *loss)).collect();
    for (points, colour) in [(&training, "#4477aa"), (&validation, "#cc6677")] {
        let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", path(points));
    }
    for (at, loss) in &validation {
        let (x, y) = (x(*at), y(f64::from(*loss)));
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"#cc6677\"/>");
    }
    let (middle, bottom) = ((X.start + X.end) / 2.0, HEIGHT - 12);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">step</text>");
    let right = X.end;
    let _ = writeln!(
        svg,
        "<text x=\"{right}\" y=\"36\" text-anchor=\"end\" fill=\"#4477aa\">training loss (nats a token)</text>\
         <text x=\"{right}\" y=\"52\" text-anchor=\"end\" fill=\"#cc6677\">validation loss</text>"
    );
    svg.push_str("</svg>\n");
    svg
}

/// The least and the largest loss, a little apart where they are equal.
fn range(history: &History) -> Option<(f64, f64)> {
    let losses = history.losses.iter().chain(history.validation.iter().map(|(_, loss)| loss));
    let finite = losses.map(|loss| f64::from(*loss)).filter(|loss| loss.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return None;
    }
    // A flat curve would have no height.
    Some(if high - low < 1e-3 { (low - 0.5, high + 0.5) } else { (low, high) })
}

/// The loss at a place from 0 to 1, on straight lines between points at equal distances.
fn between(points: &[(f64, f32)], at: f64) -> f64 {
    let at = at * points.len().saturating_sub(1) as f64;
    let loss = |i: usize| points.get(i).or(points.last()).map_or(0.0, |(_, loss)| f64::from(*loss));
    let (left, right) = (loss(at as usize), loss(at as usize + 1));
    left + (right - left) * at.fract()
}

/// Means of at most `count` groups of successive losses, each with its place from 0 to 1.
fn averages(losses: &[f32], count: usize) -> Vec<(f64, f32)> {
    let count = count.min(losses.len());
    let group = |i: usize| {
        let (from, to) = (i * losses.len() / count, (i + 1) * losses.len() / count);
        let sum: f64 = losses[from..to].iter().map(|loss| f64::from(*loss)).sum();
        (i as f64 / (count - 1).max(1) as f64, (sum / (to - from) as f64) as f32)
    };
    (0..count).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let losses = (0..300).map(|i| 2.0 + 4.0 * (-f32::from(i as i16) / 60.0).exp()).collect();
        History { losses, validation: vec![(100, 3.0), (300, 2.2)] }
    }

    #[test]
    fn curves_have_labels_and_fall() {
        let text = text(&history());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 1);
        assert!(lines[0].starts_with("    6.0"), "{text}");
        assert!(lines[ROWS].ends_with("300"), "{text}");
        // The first loss is on top at the left, the last at the bottom on the right.
        assert!(lines[0].chars().count() < 14 && lines[ROWS - 1].chars().count() == 9 + COLUMNS, "{text}");
        let svg = svg(&history());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn short_trainings_have_curves() {
        for losses in [vec![], vec![1.0], vec![1.0, 1.0], vec![1.0, f32::NAN]] {
            let history = History { losses, validation: vec![] };
            assert!(svg(&history).contains("polyline"));
            assert_eq!(text(&history).is_empty(), history.losses.is_empty());
        }
    }
}
