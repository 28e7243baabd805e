//! Kernels over floats: rotation, norms, and the encoder's search.
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");

const lanes = 16;
const V = @Vector(lanes, f32);
const fma = switch (builtin.cpu.arch) {
    .x86_64 => builtin.cpu.has(.x86, .fma),
    .aarch64 => true,
    else => false,
};

inline fn at(x: [*]const f32, i: usize) V {
    return x[i..][0..lanes].*;
}

/// a·b + c; where the processor has no such instruction @mulAdd would call a slow function.
inline fn multiply_add(a: V, b: V, c: V) V {
    return if (fma) @mulAdd(V, a, b, c) else a * b + c;
}

pub fn multiply(x: [*]f32, y: [*]const f32, len: u32) callconv(.c) void {
    var i: usize = 0;
    while (i + lanes <= len) : (i += lanes) x[i..][0..lanes].* = at(x, i) * at(y, i);
    while (i < len) : (i += 1) x[i] *= y[i];
}

pub fn dot(x: [*]const f32, y: [*]const f32, len: u32) callconv(.c) f32 {
    var sums: [4]V = @splat(@splat(0));
    var i: usize = 0;
    while (i + 4 * lanes <= len) : (i += 4 * lanes) {
        inline for (0..4) |k| sums[k] = multiply_add(at(x, i + k * lanes), at(y, i + k * lanes), sums[k]);
    }
    while (i + lanes <= len) : (i += lanes) sums[0] = multiply_add(at(x, i), at(y, i), sums[0]);
    var sum = @reduce(.Add, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    while (i < len) : (i += 1) sum += x[i] * y[i];
    return sum;
}

pub fn sum_squares(x: [*]const f32, len: u32) callconv(.c) f32 {
    return dot(x, x, len);
}

pub fn row_sums(query: [*]const f32, len: u32, element: abi.Element, kind: abi.RowSum, rows: [*]const u8, count: u32, sums: [*]f32, norms2: [*]f32) callconv(.c) void {
    switch (element) {
        inline else => |one_element| switch (kind) {
            inline else => |one_kind| {
                const T = switch (one_element) {
                    .f32 => f32,
                    .f16 => f16,
                    .u8 => u8,
                    .i8 => i8,
                };
                for (0..count) |j| row_sum(T, one_kind, query, len, rows + j * len * @sizeOf(T), &sums[j], &norms2[j]);
            },
        },
    }
}

inline fn widened(comptime T: type, bytes: [*]const u8) V {
    const raw: @Vector(lanes, T) = @as(*align(1) const [lanes]T, @ptrCast(bytes)).*;
    return if (@typeInfo(T) == .float) @floatCast(raw) else @floatFromInt(raw);
}

inline fn row_sum(comptime T: type, comptime kind: abi.RowSum, query: [*]const f32, len: u32, row: [*]const u8, sum_out: *f32, norm2_out: *f32) void {
    const width = 4;
    var sums: [width]V = @splat(@splat(0));
    var norms: [width]V = @splat(@splat(0));
    var i: usize = 0;
    while (i + width * lanes <= len) : (i += width * lanes) {
        inline for (0..width) |k| step(kind, at(query, i + k * lanes), widened(T, row + (i + k * lanes) * @sizeOf(T)), &sums[k], &norms[k]);
    }
    while (i + lanes <= len) : (i += lanes) step(kind, at(query, i), widened(T, row + i * @sizeOf(T)), &sums[0], &norms[0]);
    var sum = @reduce(.Add, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    var norm2 = @reduce(.Add, (norms[0] + norms[1]) + (norms[2] + norms[3]));
    while (i < len) : (i += 1) {
        const raw = @as(*align(1) const T, @ptrCast(row + i * @sizeOf(T))).*;
        const x: f32 = if (@typeInfo(T) == .float) @floatCast(raw) else @floatFromInt(raw);
        sum += if (kind == .difference2) (query[i] - x) * (query[i] - x) else query[i] * x;
        norm2 += x * x;
    }
    sum_out.* = sum;
    if (kind == .product_and_norm2) norm2_out.* = norm2;
}

inline fn step(comptime kind: abi.RowSum, q: V, x: V, sum: *V, norm2: *V) void {
    const difference = q - x;
    sum.* = if (kind == .difference2) multiply_add(difference, difference, sum.*) else multiply_add(q, x, sum.*);
    if (kind == .product_and_norm2) norm2.* = multiply_add(x, x, norm2.*);
}

pub fn hadamard(x: [*]f32, len: u32) callconv(.c) void {
    var i: usize = 0;
    while (i < len) : (i += lanes) {
        var v = at(x, i);
        inline for (.{ 1, 2, 4, 8 }) |half| v = within(half, v);
        x[i..][0..lanes].* = v;
    }
    var half: usize = lanes;
    while (half < len) : (half *= 2) {
        var start: usize = 0;
        while (start < len) : (start += 2 * half) {
            i = start;
            while (i < start + half) : (i += lanes) {
                const a = at(x, i);
                const b = at(x, i + half);
                x[i..][0..lanes].* = a + b;
                x[i + half ..][0..lanes].* = a - b;
            }
        }
    }
}

/// The stage whose partners lie `half` lanes apart.
inline fn within(comptime half: i32, v: V) V {
    const partner = comptime blk: {
        var mask: [lanes]i32 = undefined;
        for (&mask, 0..) |*m, i| m.* = @as(i32, i) ^ half;
        break :blk @as(@Vector(lanes, i32), mask);
    };
    const sign = comptime blk: {
        var signs: [lanes]f32 = undefined;
        for (&signs, 0..) |*s, i| s.* = if (i & half == 0) 1 else -1;
        break :blk @as(V, signs);
    };
    return v * sign + @shuffle(f32, v, undefined, partner);
}

pub fn code_scores(magnitudes: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, out: *abi.CodeScores) callconv(.c) void {
    var dot_full: V = @splat(0);
    var sum2_full: V = @splat(0);
    var dot_upper: V = @splat(0);
    var sum2_upper: V = @splat(0);
    var i: usize = 0;
    while (i < dim) : (i += lanes) {
        const magnitude = at(magnitudes, i);
        const level = floor(@min(magnitude * @as(V, @splat(t)), @as(V, @splat(level_max))));
        const x = level + @as(V, @splat(0.5));
        const y = floor(level * @as(V, @splat(upper_scale))) + @as(V, @splat(0.5));
        dot_full = multiply_add(x, magnitude, dot_full);
        sum2_full = multiply_add(x, x, sum2_full);
        dot_upper = multiply_add(y, magnitude, dot_upper);
        sum2_upper = multiply_add(y, y, sum2_upper);
    }
    out.* = .{
        .dot_full = @reduce(.Add, dot_full),
        .sum2_full = @reduce(.Add, sum2_full),
        .dot_upper = @reduce(.Add, dot_upper),
        .sum2_upper = @reduce(.Add, sum2_upper),
    };
}

/// Of values that are not negative and fit i32; @floor would call a function below SSE4.1.
inline fn floor(v: V) V {
    return @floatFromInt(@as(@Vector(lanes, i32), @intFromFloat(v)));
}

pub fn code_finish(o: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, code: [*]u16, out: *abi.CodeSums) callconv(.c) void {
    var norm2: Doubles = @splat(0);
    var dot_full: Doubles = @splat(0);
    var sum2_full: Doubles = @splat(0);
    var dot_upper: Doubles = @splat(0);
    var sum2_upper: Doubles = @splat(0);
    const half: @Vector(lanes, i32) = @splat(@as(i32, @intFromFloat(level_max)) + 1);
    var i: usize = 0;
    while (i < dim) : (i += lanes) {
        const x = at(o, i);
        const level: @Vector(lanes, i32) = @intFromFloat(@min(@abs(x) * @as(V, @splat(t)), @as(V, @splat(level_max))));
        const u = @select(i32, x < @as(V, @splat(0)), half - level - @as(@Vector(lanes, i32), @splat(1)), half + level);
        code[i..][0..lanes].* = @as(@Vector(lanes, u16), @intCast(u));
        const magnitude: Doubles = @floatCast(@abs(x));
        const full = @as(Doubles, @floatFromInt(level)) + @as(Doubles, @splat(0.5));
        const upper = @as(Doubles, @floatCast(floor(@as(V, @floatFromInt(level)) * @as(V, @splat(upper_scale))))) + @as(Doubles, @splat(0.5));
        norm2 += magnitude * magnitude;
        dot_full += full * magnitude;
        sum2_full += full * full;
        dot_upper += upper * magnitude;
        sum2_upper += upper * upper;
    }
    out.* = .{
        .norm2 = @reduce(.Add, norm2),
        .dot_full = @reduce(.Add, dot_full),
        .sum2_full = @reduce(.Add, sum2_full),
        .dot_upper = @reduce(.Add, dot_upper),
        .sum2_upper = @reduce(.Add, sum2_upper),
    };
}

const Doubles = @Vector(lanes, f64);

pub fn products(x: [*]const f64, x_count: u32, y: [*]const f64, y_count: u32, len: u32, out: [*]f64) callconv(.c) void {
    // Rows of a block are read repeatedly, few enough at a time to stay in the cache.
    const block: u32 = @max(4, 4096 / @max(1, len) * 4);
    var first: u32 = 0;
    while (first < y_count) : (first += block) {
        const last = @min(first + block, y_count);
        var i: u32 = 0;
        while (i < x_count) : (i += 4) {
            var j = first;
            while (j < last) : (j += 4) tile(x, i, @min(4, x_count - i), y, j, @min(4, last - j), y_count, len, out);
        }
    }
}

/// Four rows by four; missing rows are replaced by the last one.
inline fn tile(x: [*]const f64, i: u32, i_count: u32, y: [*]const f64, j: u32, j_count: u32, y_count: u32, len: u32, out: [*]f64) void {
    const width = 8;
    const W = @Vector(width, f64);
    var rows: [4][*]const f64 = undefined;
    var columns: [4][*]const f64 = undefined;
    inline for (0..4) |k| {
        rows[k] = x + @as(usize, @min(i + k, i + i_count - 1)) * len;
        columns[k] = y + @as(usize, @min(j + k, j + j_count - 1)) * len;
    }
    var sums: [4][4]W = @splat(@splat(@splat(0)));
    var place: usize = 0;
    while (place + width <= len) : (place += width) {
        inline for (0..4) |a| {
            const left: W = rows[a][place..][0..width].*;
            inline for (0..4) |b| {
                const right: W = columns[b][place..][0..width].*;
                sums[a][b] = if (fma) @mulAdd(W, left, right, sums[a][b]) else left * right + sums[a][b];
            }
        }
    }
    inline for (0..4) |a| inline for (0..4) |b| {
        var sum = @reduce(.Add, sums[a][b]);
        for (place..len) |rest| sum += rows[a][rest] * columns[b][rest];
        if (a < i_count and b < j_count) out[@as(usize, i + a) * y_count + j + b] = sum;
    };
}

pub fn quantise_query(x: [*]const f32, dim: u32, coarse_scale: f32, fine_scale: f32, coarse: [*]i8, hi: [*]i8, lo: [*]i8, out: *abi.QuerySums) callconv(.c) void {
    const I = @Vector(lanes, i32);
    var coarse_sum: I = @splat(0);
    var fine_sum: I = @splat(0);
    var error2: V = @splat(0);
    var i: usize = 0;
    while (i < dim) : (i += lanes) {
        const scaled = at(x, i) * @as(V, @splat(coarse_scale));
        const c = round(scaled);
        const fine = round(at(x, i) * @as(V, @splat(fine_scale)));
        const h = (fine + @as(I, @splat(128))) >> @splat(8);
        coarse[i..][0..lanes].* = @as(@Vector(lanes, i8), @intCast(c));
        hi[i..][0..lanes].* = @as(@Vector(lanes, i8), @intCast(h));
        lo[i..][0..lanes].* = @as(@Vector(lanes, i8), @intCast(fine - (h << @splat(8))));
        coarse_sum += c;
        fine_sum += fine;
        const off = scaled - @as(V, @floatFromInt(c));
        error2 += off * off;
    }
    out.* = .{
        .coarse = @reduce(.Add, coarse_sum),
        .fine = @reduce(.Add, fine_sum),
        .coarse_error2 = @reduce(.Add, error2),
    };
}

/// To the nearest integer, halves away from zero. The half is a little short of one half, so that no value below a
/// half is rounded up by the addition.
inline fn round(v: V) @Vector(lanes, i32) {
    const half: V = @splat(0x1.fffffep-2);
    const zero: V = @splat(0);
    return @intFromFloat(v + @select(f32, v < zero, -half, half));
}

pub fn max_magnitude(x: [*]const f32, len: u32) callconv(.c) f32 {
    var largest: V = @splat(0);
    var i: usize = 0;
    while (i + lanes <= len) : (i += lanes) largest = @max(largest, @abs(at(x, i)));
    var result = @reduce(.Max, largest);
    while (i < len) : (i += 1) result = @max(result, @abs(x[i]));
    return result;
}
