//! Product codes. The dimensions of a vector are divided into M parts, and each part is stored as one byte, the number of its nearest
//! of 256 centroids. Training divides either the given dimensions or principal axes, whichever gives the smaller error
//! (docs/decisions/0024).
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;
const base = @import("base");
const dispatch = @import("dispatch.zig");
const abi = @import("kernels/abi.zig");
const Form = @import("encode.zig").Form;
const Allocator = std.mem.Allocator;

const centroids_max = abi.centroids_max;
const lanes = 16;
const V = @Vector(lanes, f32);

pub const Product = struct {
    /// Of rows.
    dim: u32,
    /// Number of principal axes; 0 if parts are of dimensions as given.
    axes: u32,
    parts: u32,
    /// Of each part, a power of two. A byte modulo this number names one.
    centroids: u32,
    /// Centroids are stored 2^exponent times as large, so that they use the range of f16.
    exponent: i32,
    /// Mean squared distance of a row from its decoded code.
    error2: f32,
    /// Of each part its dimensions, of each dimension its value in all centroids.
    books: []const f16,
    /// Rows, one for each axis, in the order of the parts.
    basis: []const f16,

    pub const parts_max = 64;
    pub const axes_max = 256;
    const centroids_min = 16;
    /// Least number of rows per centroid: codebooks of few rows would take more memory than codes of these.
    const rows_each = 16;
    const rounds = 8;
    const sample_max = 1 << 14;
    const sample_min = 1 << 12;
    const sample_bytes_max = 8 << 20;
    const exponent_max = 120;

    /// Bytes of a code of vectors with that many dimensions.
    pub fn parts_for(dim: u32) u32 {
        const eighths = @round(@log2(@as(f64, @floatFromInt(dim)) / 32));
        const wanted: u32 = @intFromFloat(std.math.clamp(8 * eighths, 8, parts_max));
        return @min(dim, wanted);
    }

    /// Centroids of each part for n rows.
    fn centroids_for(n: u64) u32 {
        return std.math.floorPowerOfTwo(u32, @intCast(std.math.clamp(n / rows_each, centroids_min, centroids_max)));
    }

    /// Rows that `train` should see of n, within `room_bytes` if these hold enough.
    pub fn sample_for(n: u64, dim: u32, room_bytes: u64) u32 {
        const room: u64 = @min(room_bytes, sample_bytes_max) / (@as(u64, dim) * @sizeOf(f32));
        return @intCast(@min(n, std.math.clamp(room, sample_min, sample_max)));
    }

    /// Trains both kinds of parts on every second row and keeps the kind with the smaller error over the others. The result depends on
    /// nothing but the arguments. Of more than 16,384 rows some are left out. Rows are finite.
    pub fn train(alloc: Allocator, rows: []const f32, dim: u32, parts: u32, seed: u64) Allocator.Error!Product {
        assert(parts > 0 and parts <= @min(dim, parts_max));
        assert(rows.len > 0 and rows.len % dim == 0);
        const n = rows.len / dim;
        const centroids = centroids_for(n);
        const step = (n + sample_max - 1) / sample_max;
        const all: Rows = .{ .first = rows.ptr, .stride = step * dim, .count = (n + step - 1) / step, .dim = dim };
        if (all.count == 1) {
            var only = (try fit(alloc, all, parts, centroids, false, seed)).?;
            only.error2 = try only.error_of(alloc, all);
            return only;
        }
        const even: Rows = .{ .first = all.first, .stride = 2 * all.stride, .count = (all.count + 1) / 2, .dim = dim };
        const odd: Rows = .{ .first = all.first + all.stride, .stride = 2 * all.stride, .count = all.count / 2, .dim = dim };
        var errors = [_]f32{std.math.inf(f32)} ** 2;
        for ([_]bool{ false, true }, &errors) |by_axes, *error2| {
            var trial = try fit(alloc, even, parts, centroids, by_axes, seed) orelse continue;
            defer trial.deinit(alloc);
            error2.* = try trial.error_of(alloc, odd);
        }
        var product = try fit(alloc, all, parts, centroids, errors[1] < errors[0], seed) orelse (try fit(alloc, all, parts, centroids, false, seed)).?;
        product.error2 = @min(errors[0], errors[1]);
        return product;
    }

    pub fn deinit(self: *Product, alloc: Allocator) void {
        alloc.free(self.books);
        alloc.free(self.basis);
        self.* = undefined;
    }

    /// Values over which the parts are.
    fn values(self: *const Product) u32 {
        return if (self.axes > 0) self.axes else self.dim;
    }

    const Part = struct { first: u32, width: u32 };

    /// Widths differ by at most one; the first parts are the wider ones.
    fn part_of(total: u32, parts: u32, number: u32) Part {
        const least = total / parts;
        const wider = total % parts;
        return .{ .first = number * least + @min(number, wider), .width = least + @intFromBool(number < wider) };
    }

    fn part(self: *const Product, number: u32) Part {
        return part_of(self.values(), self.parts, number);
    }

    fn columns(self: *const Product, at: Part) [*]const f16 {
        return self.books.ptr + @as(usize, at.first) * self.centroids;
    }

    fn scale(self: *const Product) f32 {
        return std.math.ldexp(@as(f32, 1), self.exponent);
    }

    /// Floats that `encode` and `decode` need.
    pub fn scratch_len(self: *const Product) u32 {
        return self.axes;
    }

    /// The row on the axes, in `scratch`, or the row itself.
    fn projected(self: *const Product, scratch: []f32, row: []const f32) [*]const f32 {
        assert(row.len == self.dim);
        if (self.axes == 0) return row.ptr;
        var untouched: [1]f32 = undefined;
        dispatch.kernels().row_sums(row.ptr, self.dim, .f16, .product, std.mem.sliceAsBytes(self.basis).ptr, self.axes, scratch[0..self.axes].ptr, &untouched);
        return scratch.ptr;
    }

    /// The nearest centroid of each part.
    pub fn encode(self: *const Product, scratch: []f32, row: []const f32, out: []u8) void {
        assert(out.len == self.parts);
        const k = dispatch.kernels();
        const x = self.projected(scratch, row);
        const scale_of = self.scale();
        for (out, 0..) |*byte, number| {
            const at = self.part(@intCast(number));
            k.product_nearest(self.columns(at), self.centroids, at.width, x + at.first, at.width, 1, scale_of, byte[0..1]);
        }
    }

    /// Reconstructs the vector of a code. All codes are valid.
    pub fn decode(self: *const Product, scratch: []f32, code: []const u8, out: []f32) void {
        assert(code.len == self.parts);
        assert(out.len == self.dim);
        const into = if (self.axes == 0) out else scratch[0..self.axes];
        const back = std.math.ldexp(@as(f32, 1), -self.exponent);
        for (code, 0..) |byte, number| {
            const at = self.part(@intCast(number));
            const centroid = byte % self.centroids;
            for (into[at.first..][0..at.width], 0..) |*value, i| value.* = back * self.columns(at)[i * self.centroids + centroid];
        }
        if (self.axes == 0) return;
        @memset(out, 0);
        for (into, 0..) |along, i| {
            for (out, self.basis[i * self.dim ..][0..self.dim]) |*value, axis| value.* += along * @as(f32, axis);
        }
    }

    /// Mean squared distance of rows from their decoded codes.
    fn error_of(self: *const Product, alloc: Allocator, rows: Rows) Allocator.Error!f32 {
        const scratch = try alloc.alloc(f32, self.axes + self.dim);
        defer alloc.free(scratch);
        var code: [parts_max]u8 = undefined;
        const decoded = scratch[self.axes..];
        const step = (rows.count + sample_min - 1) / sample_min;
        var sum: f64 = 0;
        var counted: f64 = 0;
        var i: usize = 0;
        while (i < rows.count) : (i += step) {
            self.encode(scratch, rows.at(i), code[0..self.parts]);
            self.decode(scratch, code[0..self.parts], decoded);
            for (rows.at(i), decoded) |x, y| sum += (@as(f64, x) - y) * (@as(f64, x) - y);
            counted += 1;
        }
        return @floatCast(@min(sum / counted, std.math.floatMax(f32)));
    }

    /// Null where rows have fewer axes than there are parts, or exceed f32 along these.
    fn fit(alloc: Allocator, rows: Rows, parts: u32, centroids: u32, by_axes: bool, seed: u64) Allocator.Error!?Product {
        const k = dispatch.kernels();
        var self: Product = .{ .dim = rows.dim, .axes = 0, .parts = parts, .centroids = centroids, .exponent = 0, .error2 = 0, .books = &.{}, .basis = &.{} };
        errdefer alloc.free(self.basis);
        if (by_axes) {
            self.basis = try axes_of(alloc, rows, parts, seed);
            if (self.basis.len == 0) return null;
            self.axes = @intCast(self.basis.len / rows.dim);
        }
        const total = self.values();
        const projections: []f32 = try alloc.alloc(f32, if (by_axes) rows.count * total else 0);
        defer alloc.free(projections);
        for (0..if (by_axes) rows.count else 0) |i| _ = self.projected(projections[i * total ..][0..total], rows.at(i));
        const values_of: Rows = if (by_axes) .{ .first = projections.ptr, .stride = total, .count = rows.count, .dim = total } else rows;

        var largest: f32 = 0;
        for (0..rows.count) |i| largest = @max(largest, k.max_magnitude(values_of.at(i).ptr, total));
        if (!std.math.isFinite(largest)) { // only products with axes exceed f32
            alloc.free(self.basis);
            return null;
        }
        if (largest > 0) self.exponent = @intCast(std.math.clamp(14 - std.math.ilogb(largest), -exponent_max, exponent_max));

        const books = try alloc.alloc(f16, @as(usize, total) * centroids);
        errdefer alloc.free(books);
        self.books = books;
        const codes = try alloc.alloc(u8, rows.count);
        defer alloc.free(codes);
        const sums = try alloc.alloc(f64, @as(usize, part_of(total, parts, 0).width) * centroids);
        defer alloc.free(sums);
        var prng = base.Prng.init(seed);
        for (0..parts) |number| {
            const at = self.part(@intCast(number));
            const book = books[@as(usize, at.first) * centroids ..][0 .. @as(usize, at.width) * centroids];
            self.cluster(&prng, values_of, at, book, codes, sums[0..book.len]);
        }
        return self;
    }

    /// K-means over one part. Its centroids begin at rows that are evenly spaced.
    fn cluster(self: *const Product, prng: *base.Prng, rows: Rows, at: Part, book: []f16, codes: []u8, sums: []f64) void {
        const centroids = self.centroids;
        var loads_of: [centroids_max]u32 = undefined;
        const loads = loads_of[0..centroids];
        for (0..centroids) |c| self.place(book, c, rows.at(c * rows.count / centroids)[at.first..][0..at.width]);
        for (0..rounds) |_| {
            dispatch.kernels().product_nearest(book.ptr, centroids, at.width, rows.first + at.first, rows.stride, @intCast(rows.count), self.scale(), codes.ptr);
            @memset(sums, 0);
            @memset(loads, 0);
            for (codes, 0..) |home, i| {
                loads[home] += 1;
                for (sums[@as(usize, home) * at.width ..][0..at.width], rows.at(i)[at.first..][0..at.width]) |*sum, x| sum.* += x;
            }
            for (loads, 0..) |count, c| {
                if (count == 0) { // dense regions gain most by another centroid
                    self.place(book, c, rows.at(@intCast(prng.below(rows.count)))[at.first..][0..at.width]);
                } else for (sums[c * at.width ..][0..at.width], 0..) |sum, i| {
                    book[i * centroids + c] = @floatCast(sum / @as(f64, @floatFromInt(count)) * self.scale());
                }
            }
        }
    }

    fn place(self: *const Product, book: []f16, c: usize, row: []const f32) void {
        for (row, 0..) |x, i| book[i * self.centroids + c] = @floatCast(x * self.scale());
    }

    // ---- stored ----

    /// The first bytes of the stored form.
    const Header = extern struct {
        dim: u32,
        parts: u32,
        axes: u32,
        exponent: i32,
        error2: f32,
        centroids: u32,
        reserved: [8]u8 = @splat(0),
    };

    fn bytes_of(dim: u32, axes: u32, centroids: u32) usize {
        const total: usize = if (axes > 0) axes else dim;
        return @sizeOf(Header) + @sizeOf(f16) * (total * centroids + @as(usize, axes) * dim);
    }

    pub fn stored_bytes(self: *const Product) usize {
        return bytes_of(self.dim, self.axes, self.centroids);
    }

    /// For n rows, with the longer kind of parts.
    pub fn stored_bytes_max(dim: u32, n: u64) usize {
        return @max(bytes_of(dim, 0, centroids_for(n)), bytes_of(dim, @min(dim, axes_max), centroids_for(n)));
    }

    pub fn store(self: *const Product, bytes: []u8) void {
        assert(bytes.len == self.stored_bytes());
        const header: Header = .{ .dim = self.dim, .parts = self.parts, .axes = self.axes, .exponent = self.exponent, .error2 = self.error2, .centroids = self.centroids };
        const books = std.mem.sliceAsBytes(self.books);
        @memcpy(bytes[0..@sizeOf(Header)], std.mem.asBytes(&header));
        @memcpy(bytes[@sizeOf(Header)..][0..books.len], books);
        @memcpy(bytes[@sizeOf(Header) + books.len ..], std.mem.sliceAsBytes(self.basis));
    }

    pub const Error = error{ BadProduct, OutOfMemory };

    /// Bytes behind the stored form are ignored.
    pub fn load(alloc: Allocator, bytes: []const u8) Error!Product {
        if (bytes.len < @sizeOf(Header)) return error.BadProduct;
        var header: Header = undefined;
        @memcpy(std.mem.asBytes(&header), bytes[0..@sizeOf(Header)]);
        const h = header;
        if (h.dim == 0 or h.dim > base.limits.dim_max or h.axes > @min(h.dim, axes_max)) return error.BadProduct;
        const total = if (h.axes > 0) h.axes else h.dim;
        if (h.parts == 0 or h.parts > @min(total, parts_max) or @abs(h.exponent) > exponent_max) return error.BadProduct;
        if (h.centroids < centroids_min or h.centroids > centroids_max or !std.math.isPowerOfTwo(h.centroids)) return error.BadProduct;
        if (!(h.error2 >= 0) or !std.math.isFinite(h.error2) or bytes.len < bytes_of(h.dim, h.axes, h.centroids)) return error.BadProduct;
        const books = try alloc.alloc(f16, @as(usize, total) * h.centroids);
        errdefer alloc.free(books);
        const basis = try alloc.alloc(f16, @as(usize, h.axes) * h.dim);
        errdefer alloc.free(basis);
        var from = bytes[@sizeOf(Header)..];
        for ([_][]f16{ books, basis }) |into| {
            const into_bytes = std.mem.sliceAsBytes(into);
            @memcpy(into_bytes, from[0..into_bytes.len]);
            from = from[into_bytes.len..];
            for (into) |value| if (!std.math.isFinite(value)) return error.BadProduct;
        }
        return .{ .dim = h.dim, .axes = h.axes, .parts = h.parts, .centroids = h.centroids, .exponent = h.exponent, .error2 = h.error2, .books = books, .basis = basis };
    }
};

/// Rows that are `stride` values apart.
const Rows = struct {
    first: [*]const f32,
    stride: usize,
    count: usize,
    dim: u32,

    fn at(self: Rows, i: usize) []const f32 {
        assert(i < self.count);
        return self.first[i * self.stride ..][0..self.dim];
    }
};

/// One query against product codes.
pub const ProductQuery = struct {
    parts: u32,
    /// 256 entries per part.
    table: []align(64) u16,
    /// An estimate is `offset` plus `step` times the sum of a code's entries.
    step: f32 = 0,
    offset: f32 = 0,

    pub fn init(alloc: Allocator, parts: u32) Allocator.Error!ProductQuery {
        const table = try alloc.alignedAlloc(u16, .@"64", @as(usize, parts) * centroids_max);
        @memset(table, 0);
        return .{ .parts = parts, .table = table };
    }

    pub fn deinit(self: *ProductQuery, alloc: Allocator) void {
        alloc.free(self.table);
        self.* = undefined;
    }

    /// `row` is in the space of the rows that `product` was trained on. Allocates nothing.
    pub fn prepare(self: *ProductQuery, product: *const Product, row: []const f32, form: Form) void {
        assert(self.parts == product.parts);
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const k = dispatch.kernels();
        var scratch: [Product.axes_max]f32 = undefined;
        const x = product.projected(&scratch, row);
        const scale = product.scale();
        const kind: abi.RowSum = if (form == .distance) .difference2 else .product;
        const factor: V = @splat(if (form == .distance) 1 else -2);
        const centroids = product.centroids;
        var entries: [centroids_max]f32 = undefined;
        // Entries of a part are relative to its least one; the widest part uses all 16 bits.
        var least: [Product.parts_max]f32 = undefined;
        var range: f32 = 0;
        var sum: f64 = 0;
        for (least[0..self.parts], 0..) |*low, number| {
            const at = product.part(@intCast(number));
            k.product_table(product.columns(at), centroids, at.width, x + at.first, scale, kind, &entries);
            var lows: V = @splat(std.math.inf(f32));
            var highs: V = @splat(-std.math.inf(f32));
            for (0..centroids / lanes) |i| {
                const some = @as(V, entries[i * lanes ..][0..lanes].*) * factor;
                lows = @min(lows, some);
                highs = @max(highs, some);
            }
            low.* = @reduce(.Min, lows);
            range = @max(range, @reduce(.Max, highs) - low.*);
            sum += low.*;
        }
        const most: V = @splat(std.math.maxInt(u16));
        const steps: V = @splat(if (range > 0) std.math.maxInt(u16) / range else 0);
        for (least[0..self.parts], 0..) |low, number| {
            const at = product.part(@intCast(number));
            k.product_table(product.columns(at), centroids, at.width, x + at.first, scale, kind, &entries);
            for (0..centroids / lanes) |i| {
                const above = @as(V, entries[i * lanes ..][0..lanes].*) * factor - @as(V, @splat(low));
                const rounded: @Vector(lanes, i32) = @intFromFloat(@min(most, above * steps + @as(V, @splat(0.5))));
                self.table[number * centroids_max + i * lanes ..][0..lanes].* = @as(@Vector(lanes, u16), @intCast(rounded));
            }
            // Other bytes name the same centroids.
            const table = self.table[number * centroids_max ..][0..centroids_max];
            for (centroids..centroids_max) |c| table[c] = table[c % centroids];
        }
        const back = std.math.ldexp(@as(f64, 1), -2 * product.exponent);
        var offset = sum * back;
        // Squared length of the query outside the axes: the same for all codes, but not for records, which have exact distances.
        if (form == .distance and product.axes > 0) offset += @max(0, @as(f64, k.sum_squares(row.ptr, product.dim)) - k.sum_squares(x, product.axes));
        self.step = @floatCast(@min(step_max, back * range / std.math.maxInt(u16)));
        self.offset = @floatCast(std.math.clamp(offset, -offset_max, offset_max));
    }

    /// Bounds keep estimates finite.
    const step_max = 1e28;
    const offset_max = 1e37;

    /// Of codes of `parts` bytes one after another. In both forms as `Query.estimate`.
    pub fn estimate(self: *const ProductQuery, codes: [*]const u8, count: usize, out: []f32) void {
        assert(out.len >= count);
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const k = dispatch.kernels();
        var done: usize = 0;
        while (done < count) {
            var sums: [128]u32 = undefined;
            const some = @min(sums.len, count - done);
            k.product_scan(self.table.ptr, self.parts, codes + done * self.parts, @intCast(some), &sums);
            // At most 64 · 65,535, which is a signed number, too.
            for (sums[0..some], out[done..][0..some]) |sum, *o| o.* = self.offset + self.step * @as(f32, @floatFromInt(@as(i32, @bitCast(sum))));
            done += some;
        }
    }
};

// ---- principal axes ----

/// Rows that are multiplied together.
const block_rows = 64;
/// Enough to estimate 256 axes.
const iterated_rows = 1 << 11;
const iterations = 3;
/// Axes with a smaller share of the largest variance are left out.
const variance_least = 1e-6;

/// The principal axes of rows, at most 256, in the order of `parts` parts of about the same product of variances; none where
/// there are fewer than parts.
fn axes_of(alloc: Allocator, rows: Rows, parts: u32, seed: u64) Allocator.Error![]f16 {
    const dim: usize = rows.dim;
    const size: usize = @min(dim, Product.axes_max);
    // A subspace: all of the dimensions, or found by iteration.
    const subspace = try alloc.alloc(f64, if (dim > size) size * dim else 0);
    defer alloc.free(subspace);
    const some: Rows = if (dim == size) rows else blk: {
        const step = (rows.count + iterated_rows - 1) / iterated_rows;
        break :blk .{ .first = rows.first, .stride = step * rows.stride, .count = rows.count / step, .dim = rows.dim };
    };
    const unit = unit_of(some);
    if (unit == 0) return &.{};
    if (dim > size) {
        var prng = base.Prng.init(seed);
        for (subspace) |*value| value.* = prng.gaussian();
        orthogonalise(subspace, dim);
        for (0..iterations) |_| try iterate(alloc, some, unit, subspace);
    }
    const moments = try alloc.alloc(f64, size * size);
    defer alloc.free(moments);
    try moments_of(alloc, some, unit, subspace, moments);
    diagonalise(moments, size);

    // Rows of `moments` are now axes times their variances.
    const Axis = struct {
        row: u32,
        variance: f64,

        fn before(_: void, a: @This(), b: @This()) bool {
            return a.variance > b.variance or (a.variance == b.variance and a.row < b.row);
        }
    };
    var found: [Product.axes_max]Axis = undefined;
    for (found[0..size], 0..) |*axis, i| axis.* = .{ .row = @intCast(i), .variance = @sqrt(inner(moments[i * size ..][0..size], moments[i * size ..][0..size])) };
    std.mem.sortUnstable(Axis, found[0..size], {}, Axis.before);
    var count: u32 = 0;
    while (count < size and found[count].variance > variance_least * found[0].variance) count += 1;
    if (count < parts) return &.{};

    const basis = try alloc.alloc(f16, count * dim);
    errdefer alloc.free(basis);
    const axis_values = try alloc.alloc(f64, dim);
    defer alloc.free(axis_values);
    var filled: [Product.parts_max]u32 = @splat(0);
    var logs: [Product.parts_max]f64 = @splat(0);
    for (found[0..count]) |axis| {
        var chosen: u32 = 0;
        var least = std.math.inf(f64);
        for (0..parts) |number| {
            if (filled[number] == Product.part_of(count, parts, @intCast(number)).width or logs[number] >= least) continue;
            least = logs[number];
            chosen = @intCast(number);
        }
        const place = Product.part_of(count, parts, chosen).first + filled[chosen];
        filled[chosen] += 1;
        // Relative to the least variance, so that each axis makes a product larger.
        logs[chosen] += @log(axis.variance / found[count - 1].variance) + 1e-9;
        const weights = moments[axis.row * size ..][0..size];
        if (dim == size) @memcpy(axis_values, weights) else {
            @memset(axis_values, 0);
            for (weights, 0..) |weight, i| add_scaled(axis_values, weight, subspace[i * dim ..][0..dim]);
        }
        for (basis[place * dim ..][0..dim], axis_values) |*out, value| out.* = @floatCast(value / axis.variance);
    }
    return basis;
}

/// The reciprocal of the largest value, by which rows are multiplied so that sums of products are finite; 0 of zeros.
fn unit_of(rows: Rows) f64 {
    var largest: f32 = 0;
    for (0..rows.count) |i| largest = @max(largest, dispatch.kernels().max_magnitude(rows.at(i).ptr, rows.dim));
    return if (largest > 0) 1 / @as(f64, largest) else 0;
}

/// A block of rows and of what belongs to them, by row and by column.
const Block = struct {
    rows: []f64,
    columns: []f64,
    len: usize,

    fn init(alloc: Allocator, len: usize) Allocator.Error!Block {
        const both = try alloc.alloc(f64, 2 * block_rows * len);
        return .{ .rows = both[0 .. block_rows * len], .columns = both[block_rows * len ..], .len = len };
    }

    fn deinit(self: Block, alloc: Allocator) void {
        alloc.free(self.rows.ptr[0 .. 2 * block_rows * self.len]);
    }

    /// Zeros in place of rows behind the last.
    fn fill(self: Block, rows: Rows, first: usize, unit: f64) void {
        for (0..block_rows) |i| {
            const into = self.rows[i * self.len ..][0..self.len];
            if (first + i >= rows.count) @memset(into, 0) else for (into, rows.at(first + i)) |*out, x| {
                out.* = x * unit;
            }
        }
        self.transpose();
    }

    fn transpose(self: Block) void {
        for (0..self.len) |j| for (0..block_rows) |i| {
            self.columns[j * block_rows + i] = self.rows[i * self.len + j];
        };
    }

    /// Coordinates of rows in a subspace.
    fn project(self: Block, rows: Block, subspace: []const f64) void {
        dispatch.kernels().products(rows.rows.ptr, block_rows, subspace.ptr, @intCast(self.len), @intCast(rows.len), self.rows.ptr);
        self.transpose();
    }
};

/// sums[a, b] += Σ x_a·y_b over the rows of a block, a few a at a time.
fn add_products(x: Block, y: Block, sums: []f64, some: []f64) void {
    const together = some.len / y.len;
    var a: usize = 0;
    while (a < x.len) : (a += together) {
        const count = @min(together, x.len - a);
        dispatch.kernels().products(x.columns.ptr + a * block_rows, @intCast(count), y.columns.ptr, @intCast(y.len), block_rows, some.ptr);
        for (sums[a * y.len ..][0 .. count * y.len], some[0 .. count * y.len]) |*sum, value| sum.* += value;
    }
}

const products_together = 16;

/// Multiplies a subspace by the moments of rows, without these: orthogonal iteration.
fn iterate(alloc: Allocator, rows: Rows, unit: f64, subspace: []f64) Allocator.Error!void {
    const dim: usize = rows.dim;
    const next = try alloc.alloc(f64, subspace.len);
    defer alloc.free(next);
    @memset(next, 0);
    const block: Block = try .init(alloc, dim);
    defer block.deinit(alloc);
    const along: Block = try .init(alloc, subspace.len / dim);
    defer along.deinit(alloc);
    const some = try alloc.alloc(f64, products_together * dim);
    defer alloc.free(some);
    var first: usize = 0;
    while (first < rows.count) : (first += block_rows) {
        block.fill(rows, first, unit);
        along.project(block, subspace);
        add_products(along, block, next, some);
    }
    orthogonalise(next, dim);
    @memcpy(subspace, next);
}

/// Second moments of rows, in a subspace if there is one.
fn moments_of(alloc: Allocator, rows: Rows, unit: f64, subspace: []const f64, moments: []f64) Allocator.Error!void {
    @memset(moments, 0);
    const dim: usize = rows.dim;
    const block: Block = try .init(alloc, dim);
    defer block.deinit(alloc);
    const along: Block = try .init(alloc, subspace.len / dim);
    defer along.deinit(alloc);
    const used = if (subspace.len > 0) along else block;
    const some = try alloc.alloc(f64, products_together * used.len);
    defer alloc.free(some);
    var first: usize = 0;
    while (first < rows.count) : (first += block_rows) {
        block.fill(rows, first, unit);
        if (subspace.len > 0) along.project(block, subspace);
        add_products(used, used, moments, some);
    }
}

/// Rows become orthonormal. A row that depends on those before it becomes zero.
fn orthogonalise(rows: []f64, dim: usize) void {
    for (0..rows.len / dim) |i| {
        const row = rows[i * dim ..][0..dim];
        const before = inner(row, row);
        for (0..i) |j| {
            const other = rows[j * dim ..][0..dim];
            add_scaled(row, -inner(row, other), other);
        }
        const length2 = inner(row, row);
        const factor = if (length2 > 1e-20 * before and length2 > 0) 1 / @sqrt(length2) else 0;
        for (row) |*x| x.* *= factor;
    }
}

/// Rotates pairs of rows of a symmetric matrix until all are orthogonal (one-sided Jacobi): each is then an eigenvector times its
/// eigenvalue.
fn diagonalise(matrix: []f64, size: usize) void {
    const sweeps = 12;
    const tolerance = 1e-5; // of a cosine; axes are stored with an error of the same size
    var norms2: [Product.axes_max]f64 = undefined;
    for (0..sweeps) |_| {
        var rotated = false;
        for (norms2[0..size], 0..) |*norm2, i| norm2.* = inner(matrix[i * size ..][0..size], matrix[i * size ..][0..size]);
        for (0..size) |i| for (i + 1..size) |j| {
            const a = matrix[i * size ..][0..size];
            const b = matrix[j * size ..][0..size];
            const aa = norms2[i];
            const bb = norms2[j];
            const ab = inner(a, b);
            if (@abs(ab) <= tolerance * @sqrt(@max(0, aa * bb)) or ab == 0) continue;
            rotated = true;
            const ratio = (bb - aa) / (2 * ab);
            const sign: f64 = if (ratio < 0) -1 else 1;
            const t = sign / (@abs(ratio) + @sqrt(1 + ratio * ratio));
            const cosine = 1 / @sqrt(1 + t * t);
            const sine = t * cosine;
            norms2[i] = @max(0, aa - t * ab);
            norms2[j] = bb + t * ab;
            for (a, b) |*x, *y| {
                const moved = cosine * x.* - sine * y.*;
                y.* = sine * x.* + cosine * y.*;
                x.* = moved;
            }
        };
        if (!rotated) return;
    }
}

fn inner(a: []const f64, b: []const f64) f64 {
    const width = 8;
    const Doubles = @Vector(width, f64);
    assert(a.len == b.len);
    var sums: Doubles = @splat(0);
    var i: usize = 0;
    while (i + width <= a.len) : (i += width) sums += @as(Doubles, a[i..][0..width].*) * @as(Doubles, b[i..][0..width].*);
    var sum = @reduce(.Add, sums);
    for (a[i..], b[i..]) |x, y| sum += x * y;
    return sum;
}

fn add_scaled(sums: []f64, factor: f64, row: []const f64) void {
    for (sums, row) |*sum, x| sum.* += factor * x;
}
