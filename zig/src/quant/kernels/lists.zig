//! The list of candidates of a search. It is a row of ascending numbers, so a newcomer x finds its place and moves what lies
//! behind in one pass that branches on nothing: a place becomes min(itself, max(the one before it, x)).
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");

const x86 = builtin.cpu.arch == .x86_64;
/// Candidates that a register holds.
const lanes = if (x86 and builtin.cpu.has(.x86, .avx512vl)) 8 else if (x86 and builtin.cpu.has(.x86, .avx2)) 4 else 2;
/// Of a longer list stretches that lie before the newcomer are left out.
const stretch = 128;

const together = abi.inserted_max;
const Floats = @Vector(together, f32);
const Keys = @Vector(together, i64);
const Several = @Vector(lanes, i64);

comptime {
    if (lanes > abi.list_padding) @compileError("a list has too little room behind its end");
}

pub fn insert_nearest(items: [*]abi.Candidate, len: u32, limit: u32, reach: f32, vertices: [*]const u32, distances: [*]const f32, count: u32, out: *abi.Inserted) callconv(.c) void {
    const bound = if (len < limit) reach else @min(reach, items[len - 1].distance());
    const given: Floats = distances[0..together].*;
    const asked = std.simd.iota(u32, together) < @as(@Vector(together, u32), @splat(count));
    const entering = (given < @as(Floats, @splat(bound))) & asked;
    var left: std.meta.Int(.unsigned, together) = @bitCast(entering);
    out.* = .{ .nearest = .none, .len = len, .entered = left };
    if (left == 0) return;
    const numbers: @Vector(together, u32) = vertices[0..together].*;
    const keys = @select(i64, entering, keys_of(given, numbers), @as(Keys, @splat(abi.Candidate.none.key)));
    out.nearest = .{ .key = @reduce(.Min, keys) };
    const each: [together]i64 = keys;
    const row: [*]i64 = @ptrCast(items);
    var now = len;
    while (left != 0) : (left &= left - 1) {
        now = @min(limit, now + 1);
        insert(row, now, each[@ctz(left)]);
    }
    out.len = now;
}

inline fn keys_of(distances: Floats, vertices: @Vector(together, u32)) Keys {
    const Bits = @Vector(together, i32);
    const bits: Bits = @bitCast(distances + @as(Floats, @splat(0))); // one zero only
    const ordered = bits ^ ((bits >> @splat(31)) & @as(Bits, @splat(std.math.maxInt(i32))));
    return @as(Keys, ordered) << @splat(32) | @as(Keys, vertices) << @splat(1);
}

/// Into a row that is `end` long afterwards.
inline fn insert(row: [*]i64, end: u32, key: i64) void {
    var at: u32 = 0;
    while (at + stretch < end and row[at + stretch - 1] < key) at += stretch;
    const newcomer: Several = @splat(key);
    // Candidates before the first place are nearer than the newcomer.
    var before: Several = @splat(std.math.minInt(i64));
    while (at < end) : (at += lanes) {
        const here: Several = row[at..][0..lanes].*;
        row[at..][0..lanes].* = @min(here, @max(moved_up(before, here), newcomer));
        before = here;
    }
}

/// The last of `before`, then all but the last of `here`.
inline fn moved_up(before: Several, here: Several) Several {
    const mask = comptime blk: {
        var places: [lanes]i32 = undefined;
        for (&places, 0..) |*place, i| place.* = if (i == 0) ~@as(i32, lanes - 1) else @as(i32, @intCast(i)) - 1;
        break :blk @as(@Vector(lanes, i32), places);
    };
    return @shuffle(i64, here, before, mask);
}
