//! The list of candidates of a search: several newcomers go into it at once. Where each belongs is found before any moves, so
//! that nothing is loaded that was just stored; then whatever stands behind them moves once.
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");

const x86 = builtin.cpu.arch == .x86_64;
/// Candidates that a register holds.
const lanes = if (x86 and builtin.cpu.has(.x86, .avx512vl)) 8 else if (x86 and builtin.cpu.has(.x86, .avx2)) 4 else 2;
/// Of so many it is counted how many are nearer; a longer list is halved before.
const counted_max = 8 * lanes;

const together = abi.inserted_max;
const Floats = @Vector(together, f32);
const Places = @Vector(together, u32);

pub fn insert_nearest(items: [*]abi.Candidate, len: u32, limit: u32, vertices: [*]const u32, distances: [*]const f32, count: u32, out: *abi.Inserted) callconv(.c) void {
    const bound = if (len < limit) std.math.inf(f32) else items[len - 1].distance;
    const number = std.simd.iota(u32, together);
    const given: Floats = distances[0..together].*;
    const entering = (given < @as(Floats, @splat(bound))) & (number < @as(Places, @splat(count)));
    var left: std.meta.Int(.unsigned, together) = @bitCast(entering);
    out.* = .{ .len = len, .first = len, .entered = left };
    if (left == 0) return;
    const far: Floats = @select(f32, entering, given, @as(Floats, @splat(std.math.inf(f32))));
    var rank: Places = @splat(0);
    inline for (0..together) |i| {
        const one: Floats = @splat(far[i]);
        const before = (one < far) | ((one == far) & (@as(Places, @splat(i)) < number));
        rank += @intFromBool(before);
    }
    const ranks: [together]u32 = rank;
    const entered: u32 = @popCount(left);
    var order: [together]u32 = undefined;
    var places: [together]u32 = undefined;
    while (left != 0) : (left &= left - 1) {
        const i = @ctz(left);
        order[ranks[i]] = i;
        places[ranks[i]] = not_above(items, len, distances[i]);
    }
    var end = len;
    var i = entered;
    while (i > 0) {
        i -= 1;
        move_up(items, places[i], end, i + 1);
        end = places[i];
        items[end + i] = .{ .distance = distances[order[i]], .tagged = vertices[order[i]] };
    }
    out.len = @min(limit, len + entered);
    out.first = places[0];
}

/// How many of an ascending list are not above this distance.
inline fn not_above(items: [*]const abi.Candidate, len: u32, distance: f32) u32 {
    const Several = @Vector(2 * lanes, f32);
    const Mask = std.meta.Int(.unsigned, 2 * lanes);
    const distances_only: Mask = @truncate(0x5555);
    const words: [*]align(4) const f32 = @ptrCast(items);
    const wanted: Several = @splat(distance);
    var first: u32 = 0;
    var rest = len;
    while (rest > counted_max) {
        const half = rest / 2;
        first += half & at_most(items[first + half - 1].distance, distance);
        rest -= half;
    }
    var found = first;
    while (rest >= lanes) {
        const several: Several = words[2 * first ..][0 .. 2 * lanes].*;
        found += @popCount(@as(Mask, @bitCast(several <= wanted)) & distances_only);
        first += lanes;
        rest -= lanes;
    }
    const several: Several = words[2 * first ..][0 .. 2 * lanes].*;
    const there = (@as(Mask, 1) << @intCast(2 * rest)) - 1;
    return found + @popCount(@as(Mask, @bitCast(several <= wanted)) & distances_only & there);
}

/// All ones where a is not above b, else 0. Of a comparison of floats the compiler makes a branch, which nobody can
/// predict; so numbers of the same order are subtracted.
inline fn at_most(a: f32, b: f32) u32 {
    return @truncate(@as(u64, @bitCast((rank_of(a) - rank_of(b) - 1) >> 63)));
}

inline fn rank_of(distance: f32) i64 {
    const bits: i32 = @bitCast(distance + 0.0); // one zero only
    return bits ^ ((bits >> 31) & std.math.maxInt(i32));
}

/// Moves items[from..end] up by `by` places, several at a time from the top.
inline fn move_up(items: [*]abi.Candidate, from: u32, end: u32, by: u32) void {
    const words: [*]align(4) u64 = @ptrCast(items);
    var at = end;
    while (at >= from + lanes) {
        at -= lanes;
        const several: @Vector(lanes, u64) = words[at..][0..lanes].*;
        words[at + by ..][0..lanes].* = several;
    }
    while (at > from) {
        at -= 1;
        words[at + by] = words[at];
    }
}
