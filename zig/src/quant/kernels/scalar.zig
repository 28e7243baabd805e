//! The definition: what every kernel computes, one value at a time. Tests hold each compiled level against this file.
const std = @import("std");
const abi = @import("abi.zig");

/// Dimension i of a packed code: bits [i·bits, (i+1)·bits), which lie in at most two bytes.
pub fn code_at(code: [*]const u8, i: usize, bits: u32) u32 {
    const bit = i * bits;
    var two: u32 = code[bit / 8];
    if (bit % 8 + bits > 8) two |= @as(u32, code[bit / 8 + 1]) << 8;
    return (two >> @intCast(bit % 8)) & ((@as(u32, 1) << @intCast(bits)) - 1);
}

pub fn dot_code(query: [*]const i8, dim: u32, bits: u32, code: [*]const u8) i32 {
    var sum: i32 = 0;
    for (0..dim) |i| sum += query[i] * @as(i32, @intCast(code_at(code, i, bits)));
    return sum;
}

pub fn checksum(bytes: [*]const u8, len: usize) callconv(.c) u64 {
    return std.hash.XxHash3.hash(0, bytes[0..len]);
}

pub fn estimate_gather(query: [*]align(64) const i8, dim: u32, bits: u32, codes: [*]const u8, factors: [*]const u32, ids: [*]const u32, count: u32, _: u32, terms: *const abi.EstimateTerms, out: [*]f32) callconv(.c) void {
    for (ids[0..count], out[0..count]) |id, *o| {
        const offset: f32 = @bitCast((factors[id] & 0xffff) << 15);
        const f: f32 = @bitCast((factors[id] >> 16) << 15);
        const dot_query: f32 = @floatFromInt(dot_code(query, dim, bits, codes + @as(usize, id) * (dim * bits / 8)));
        o.* = offset + terms.query_terms[terms.centers[id]] - f * (dot_query * terms.scale - terms.bias);
    }
}

/// Dimension i of a row of a block (abi.block_rows).
pub fn block_value(block: [*]const u8, row: usize, i: usize, cell: u32) u32 {
    const each = 32 / cell;
    const within = i % each;
    const byte = block[(i / each * abi.block_rows + row) * 4 + within % 4];
    return (byte >> @intCast(within / 4 * cell)) & ((@as(u32, 1) << @intCast(cell)) - 1);
}

pub fn estimate_blocks(query: [*]align(64) const i8, dim: u32, cell: u32, blocks: [*]align(64) const u8, factors: [*]const u32, count: u32, reach: f32, terms: *const abi.EstimateTerms, out: [*]f32, near: [*]u32) callconv(.c) void {
    for (0..count) |b| {
        const block = blocks + b * abi.block_words(dim, cell) * 4 * abi.block_rows;
        near[b] = 0;
        for (0..abi.block_rows) |row| {
            const id = b * abi.block_rows + row;
            var sum: i32 = 0;
            for (0..dim) |i| sum += query[i] * @as(i32, @intCast(block_value(block, row, i, cell)));
            const offset: f32 = @bitCast((factors[id] & 0xffff) << 15);
            const f: f32 = @bitCast((factors[id] >> 16) << 15);
            const dot_query: f32 = @floatFromInt(sum);
            out[id] = offset + terms.query_terms[terms.centers[id]] - f * (dot_query * terms.scale - terms.bias);
            if (out[id] <= reach) near[b] |= @as(u32, 1) << @intCast(row);
        }
    }
}

pub fn insert_nearest(items: [*]abi.Candidate, len: u32, limit: u32, reach: f32, vertices: [*]const u32, distances: [*]const f32, count: u32, out: *abi.Inserted) callconv(.c) void {
    out.* = .{ .nearest = .none, .len = len, .entered = 0 };
    const bound = if (len < limit) reach else @min(reach, items[len - 1].distance());
    for (vertices[0..count], distances[0..count], 0..) |vertex, distance, i| {
        if (!(distance < bound)) continue;
        out.entered |= @as(u32, 1) << @intCast(i);
        const newcomer: abi.Candidate = .of(vertex, distance);
        if (newcomer.key < out.nearest.key) out.nearest = newcomer;
        var place = out.len;
        while (place > 0 and items[place - 1].key > newcomer.key) : (place -= 1) {
            if (place < limit) items[place] = items[place - 1];
        }
        if (place < limit) items[place] = newcomer;
        out.len = @min(limit, out.len + 1);
    }
}

pub fn dot_gather2(hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, base: [*]const u8, stride: usize, ids: [*]const u32, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void {
    for (ids[0..count], 0..) |id, j| {
        out_hi[j] = dot_code(hi, dim, bits, base + id * stride);
        out_lo[j] = dot_code(lo, dim, bits, base + id * stride);
    }
}

pub fn record_distances(dots: *const abi.RecordDots, records: *const abi.Records, terms: *const abi.RecordTerms, count: u32, out: [*]f32) callconv(.c) void {
    for (0..count) |j| {
        var inner = @as(i64, dots.upper_hi[j]) * 256 + dots.upper_lo[j];
        if (terms.record_bits > 0) inner = (inner << @intCast(terms.record_bits)) + @as(i64, dots.lower_hi[j]) * 256 + dots.lower_lo[j];
        const f_upper: f32 = @bitCast((records.factors[j] >> 16) << 15);
        const f = f_upper * (@as(f32, @floatFromInt(records.ratios[j])) * terms.ratio_step);
        // Exact in whole numbers, rounded once.
        const twice_inner: f32 = @floatFromInt(2 * inner - terms.bias);
        out[j] = records.offsets[j] + terms.query_terms[records.centers[j]] - f * (twice_inner * terms.step);
    }
}

pub fn dot_rows(hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, rows: [*]const u8, stride: usize, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void {
    for (0..count) |j| {
        out_hi[j] = dot_code(hi, dim, bits, rows + j * stride);
        out_lo[j] = dot_code(lo, dim, bits, rows + j * stride);
    }
}

pub fn pair_gather(plane: [*]align(64) const i8, dim: u32, codes: [*]const u8, factors: [*]const abi.PairFactors, ids: [*]const u32, count: u32, terms: *const abi.PairTerms, out: [*]f32) callconv(.c) void {
    for (ids[0..count], out[0..count]) |id, *o| {
        const factor = factors[id];
        const inner: f32 = @floatFromInt(2 * dot_code(plane, dim, 8, codes + @as(usize, id) * dim) + factor.sum + terms.bias);
        o.* = @max(0, factor.norm2 + terms.norm2 - terms.f * factor.f * inner);
    }
}

pub fn code_scores(magnitudes: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, out: *abi.CodeScores) callconv(.c) void {
    var dot_full: f64 = 0;
    var sum2_full: f64 = 0;
    var dot_upper: f64 = 0;
    var sum2_upper: f64 = 0;
    for (magnitudes[0..dim]) |magnitude| {
        const level = @min(@floor(magnitude * t), level_max);
        const x = level + 0.5;
        const y = @floor(level * upper_scale) + 0.5;
        dot_full += @as(f64, x) * magnitude;
        sum2_full += @as(f64, x) * x;
        dot_upper += @as(f64, y) * magnitude;
        sum2_upper += @as(f64, y) * y;
    }
    out.* = .{
        .dot_full = @floatCast(dot_full),
        .sum2_full = @floatCast(sum2_full),
        .dot_upper = @floatCast(dot_upper),
        .sum2_upper = @floatCast(sum2_upper),
    };
}

pub fn code_finish(o: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, code: [*]u16, out: *abi.CodeSums) callconv(.c) void {
    var sums = std.mem.zeroes(abi.CodeSums);
    for (o[0..dim], code[0..dim]) |x, *u| {
        const level = @min(@floor(@abs(x) * t), level_max);
        const center = level_max + 0.5;
        const offset = level + 0.5;
        u.* = @intFromFloat(if (x < 0) center - offset else center + offset);
        const magnitude: f64 = @abs(x);
        const upper: f64 = @floor(level * upper_scale) + 0.5;
        sums.norm2 += magnitude * magnitude;
        sums.dot_full += offset * magnitude;
        sums.sum2_full += @as(f64, offset) * offset;
        sums.dot_upper += upper * magnitude;
        sums.sum2_upper += upper * upper;
    }
    out.* = sums;
}

pub fn quantise_query(x: [*]const f32, dim: u32, coarse_scale: f32, fine_scale: f32, coarse: [*]i8, hi: [*]i8, lo: [*]i8, out: *abi.QuerySums) callconv(.c) void {
    var sums = std.mem.zeroes(abi.QuerySums);
    var error2: f64 = 0;
    for (0..dim) |i| {
        const c: i32 = @intFromFloat(@round(x[i] * coarse_scale));
        const fine: i32 = @intFromFloat(@round(x[i] * fine_scale));
        coarse[i] = @intCast(c);
        hi[i] = @intCast((fine + 128) >> 8);
        lo[i] = @intCast(fine - @as(i32, hi[i]) * 256);
        sums.coarse += c;
        sums.fine += fine;
        const off = x[i] * coarse_scale - @as(f32, @floatFromInt(c));
        error2 += off * off;
    }
    sums.coarse_error2 = @floatCast(error2);
    out.* = sums;
}

pub fn max_magnitude(x: [*]const f32, len: u32) callconv(.c) f32 {
    var largest: f32 = 0;
    for (x[0..len]) |a| largest = @max(largest, @abs(a));
    return largest;
}

pub fn multiply(x: [*]f32, y: [*]const f32, len: u32) callconv(.c) void {
    for (x[0..len], y[0..len]) |*a, b| a.* *= b;
}

pub fn hadamard(x: [*]f32, len: u32) callconv(.c) void {
    var half: usize = 1;
    while (half < len) : (half *= 2) {
        var start: usize = 0;
        while (start < len) : (start += 2 * half) {
            for (x[start..][0..half], x[start + half ..][0..half]) |*a, *b| {
                const sum = a.* + b.*;
                b.* = a.* - b.*;
                a.* = sum;
            }
        }
    }
}

pub fn products(x: [*]const f64, x_count: u32, y: [*]const f64, y_count: u32, len: u32, out: [*]f64) callconv(.c) void {
    for (0..x_count) |i| for (0..y_count) |j| {
        var sum: f64 = 0;
        for (x[i * len ..][0..len], y[j * len ..][0..len]) |a, b| sum += a * b;
        out[i * y_count + j] = sum;
    };
}

pub fn sum_squares(x: [*]const f32, len: u32) callconv(.c) f32 {
    return dot(x, x, len);
}

pub fn dot(x: [*]const f32, y: [*]const f32, len: u32) callconv(.c) f32 {
    var sum: f64 = 0;
    for (x[0..len], y[0..len]) |a, b| sum += @as(f64, a) * b;
    return @floatCast(sum);
}

pub fn row_sums(query: [*]const f32, len: u32, element: abi.Element, kind: abi.RowSum, rows: [*]const u8, count: u32, sums: [*]f32, norms2: [*]f32) callconv(.c) void {
    for (0..count) |j| {
        var sum: f64 = 0;
        var norm2: f64 = 0;
        for (query[0..len], j * len..) |q, i| {
            const x: f64 = switch (element) {
                .f32 => @as([*]align(1) const f32, @ptrCast(rows))[i],
                .f16 => @as([*]align(1) const f16, @ptrCast(rows))[i],
                .u8 => @floatFromInt(rows[i]),
                .i8 => @floatFromInt(@as(i8, @bitCast(rows[i]))),
            };
            sum += if (kind == .difference2) (q - x) * (q - x) else q * x;
            norm2 += x * x;
        }
        sums[j] = @floatCast(sum);
        if (kind == .product_and_norm2) norms2[j] = @floatCast(norm2);
    }
}

/// Bounds what a value times a scale contributes, so that sums of squares are finite.
pub inline fn product_scaled(x: f32, scale: f32) f32 {
    const limit = 0x1p50;
    return @max(-limit, @min(limit, x * scale));
}

pub fn product_table(columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32, kind: abi.RowSum, out: [*]f32) callconv(.c) void {
    for (out[0..centroids], 0..) |*o, c| {
        var sum: f32 = 0;
        for (x[0..width], 0..) |value, i| {
            const y = product_scaled(value, scale);
            const centroid: f32 = columns[i * centroids + c];
            sum += if (kind == .difference2) (y - centroid) * (y - centroid) else y * centroid;
        }
        o.* = sum;
    }
}

pub fn product_nearest(columns: [*]const f16, centroids: u32, width: u32, rows: [*]const f32, stride: usize, count: u32, scale: f32, out: [*]u8) callconv(.c) void {
    for (0..count) |j| {
        var distances: [abi.centroids_max]f32 = undefined;
        product_table(columns, centroids, width, rows + j * stride, scale, .difference2, &distances);
        out[j] = @intCast(std.mem.indexOfMin(f32, distances[0..centroids]));
    }
}

pub fn product_scan(table: [*]const u16, parts: u32, codes: [*]const u8, count: u32, out: [*]u32) callconv(.c) void {
    for (out[0..count], 0..) |*o, j| {
        var sum: u32 = 0;
        for (codes[j * parts ..][0..parts], 0..) |centroid, m| sum += table[m * abi.centroids_max + centroid];
        o.* = sum;
    }
}
