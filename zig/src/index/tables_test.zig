//! Builds with tables of neighbors in their pages and product codes of pages.
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const quant = @import("quant");
const option_room = @import("options.zig");
const reader = @import("reader.zig");
const files = @import("files.zig");
const space = @import("space.zig");
const page_codes = @import("page_codes.zig");
const recommit = @import("committed.zig").recommit;
const verify = @import("committed.zig").verify;
const Builder = @import("builder.zig").Builder;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const Options = option_room.Options;
const Reader = reader.Reader;
const testing = std.testing;

const Built = struct {
    tmp: std.testing.TmpDir,
    buffer: [std.fs.max_path_bytes]u8 = undefined,
    path: []const u8 = "",
    rows: []f32 = &.{},
    /// The row of each vertex.
    order: []u32 = &.{},
    options: Options = undefined,
    partitions: u32 = 0,
    diagnostic: Diagnostic = .{},

    /// Rows of overlapping clusters.
    fn init(self: *Built, options: Options) !void {
        self.* = .{ .tmp = testing.tmpDir(.{}), .options = options };
        const parent = try self.tmp.dir.realpath(".", &self.buffer);
        self.path = try std.fmt.bufPrint(self.buffer[parent.len..], "{s}/x.velo", .{parent});
        self.rows = try testing.allocator.alloc(f32, @intCast(options.n * options.dim));
        for (0..@intCast(options.n)) |i| {
            var center = base.Prng.init(3).split(i % 20);
            var offset = base.Prng.init(4).split(i);
            for (self.rows[i * options.dim ..][0..options.dim]) |*value| value.* = 10 * (center.gaussian() + offset.gaussian());
        }
        errdefer std.debug.print("{s} {s}\n", .{ self.diagnostic.message(), self.diagnostic.file() });
        const builder = try Builder.open(testing.allocator, self.path, options, &self.diagnostic);
        defer builder.close();
        self.partitions = builder.plan.partitions;
        const given = try self.input();
        defer testing.allocator.free(given);
        const stride = options.dim * options.dtype.bytes();
        try builder.scan(given.ptr, options.n, stride, &self.diagnostic);
        try builder.add(given.ptr, options.n, stride, &self.diagnostic);
        try builder.run(&self.diagnostic);
        self.order = try testing.allocator.dupe(u32, builder.order.?);
        try builder.commit(&.{}, "{}", &self.diagnostic);
    }

    /// The rows in the type of the input, and back.
    fn input(self: *Built) ![]u8 {
        const dtype = self.options.dtype;
        const bytes = try testing.allocator.alloc(u8, self.rows.len * dtype.bytes());
        for (self.rows, 0..) |*value, i| switch (dtype) {
            .f32 => bytes[4 * i ..][0..4].* = @bitCast(value.*),
            .f16 => bytes[2 * i ..][0..2].* = @bitCast(@as(f16, @floatCast(value.*))),
            .u8 => bytes[i] = @intFromFloat(std.math.clamp(@round(value.* + 128), 0, 255)),
            .i8 => bytes[i] = @bitCast(@as(i8, @intFromFloat(std.math.clamp(@round(value.*), -128, 127)))),
        };
        space.convert(dtype, bytes, self.rows);
        return bytes;
    }

    fn deinit(self: *Built) void {
        testing.allocator.free(self.rows);
        testing.allocator.free(self.order);
        self.tmp.cleanup();
    }

    fn manifest_sum(self: *Built) !u64 {
        const path = try std.fs.path.join(testing.allocator, &.{ self.path, layout.manifest.file_name });
        defer testing.allocator.free(path);
        const text = try std.fs.cwd().readFileAlloc(testing.allocator, path, 1 << 20);
        defer testing.allocator.free(text);
        return base.checksum(text);
    }

    /// Compares all tables with links and rows, and page codes with each other.
    fn check(self: *Built) !void {
        errdefer std.debug.print("{s} {s}\n", .{ self.diagnostic.message(), self.diagnostic.file() });
        const n: u32 = @intCast(self.options.n);
        var pages: u64 = 0;
        try verify(testing.allocator, self.path, &pages, &self.diagnostic);
        var opened = try Reader.open(testing.allocator, self.path, .{}, &self.diagnostic);
        defer opened.deinit();
        const m = opened.manifest();
        const record_code_bytes = self.options.record_code_bytes;
        try testing.expectEqual(@as(u32, if (record_code_bytes > 0) 8 else 7), m.format_version);
        try testing.expect(m.page_tables and m.page_codes and m.record_codes == (record_code_bytes > 0));
        try testing.expectEqual(if (record_code_bytes > 0) record_code_bytes else quant.Product.parts_for(self.options.dim), m.code_bytes);
        var of_pages = try Reader.open(testing.allocator, self.path, .{ .page_codes = .always }, &self.diagnostic);
        defer of_pages.deinit();
        const own = &of_pages.page_products.?;
        try testing.expectEqual(own.count, of_pages.page_codes_kept());

        const row = try testing.allocator.alloc(f32, self.options.dim);
        defer testing.allocator.free(row);
        const scratch = try testing.allocator.alloc(f32, own.product.scratch_len());
        defer testing.allocator.free(scratch);
        var walk = try reader.PageWalk.init(testing.allocator, &opened);
        defer walk.deinit();
        var neighbors: u64 = 0;
        while (try walk.next(&self.diagnostic)) |view| {
            try testing.expect(view.record_count <= m.page_records);
            var linked: std.AutoHashMapUnmanaged(u32, void) = .empty;
            defer linked.deinit(testing.allocator);
            for (view.first_vertex..view.first_vertex + view.record_count) |vertex| {
                var buffer: [layout.adjacency.neighbors_max]u32 = undefined;
                for (try opened.links.?.decode(@intCast(vertex), &buffer)) |id| if (!view.has(id)) try linked.put(testing.allocator, id, {});
            }
            var ids: [layout.page.table_max]u32 = undefined;
            const table = try walk.table(&view, &ids, &self.diagnostic);
            neighbors += table.ids.len;
            for (table.ids, 0..) |id, i| {
                try testing.expect(linked.contains(id));
                self.place_row(&opened, id, row);
                var code: [layout.page.code_bytes_max]u8 = undefined;
                own.product.encode(scratch, row, code[0..m.code_bytes]);
                try testing.expectEqualSlices(u8, code[0..m.code_bytes], table.codes[i * m.code_bytes ..][0..m.code_bytes]);
            }
            if (table.ids.len == @min(linked.count(), layout.page.table_max)) continue;
            // Another neighbor has no room: a code and an id of 40 bits.
            const end = @intFromPtr(table.codes) + table.ids.len * m.code_bytes - @intFromPtr(view.bytes);
            try testing.expect(end <= view.page_size and end + m.code_bytes + 5 > view.page_size);
        }
        try testing.expect(neighbors > 0 or opened.directory.page_count() == 1);

        var coarse = try Reader.open(testing.allocator, self.path, .{ .page_codes = .always, .page_codes_kept = 1 }, &self.diagnostic);
        defer coarse.deinit();
        const first = &coarse.page_products.?;
        const page_count = opened.directory.page_count();
        try testing.expectEqual(page_count * m.code_bytes, first.codes.len);
        try testing.expectEqual(@as(usize, page_count) * own.center_count * m.code_bytes, own.codes.len);
        if (own.record_codes.len > 0) try self.check_records(&opened, own, row, scratch);
        try testing.expectEqual((page_count + 63) / 64, first.cell_places.len);
        for (first.cell_places, 0..) |place, cell|
            try testing.expectEqualSlices(u8, first.codes[(64 * cell + place) * m.code_bytes ..][0..m.code_bytes], first.cell_codes[cell * m.code_bytes ..][0..m.code_bytes]);
        try testing.expect(own.spread <= first.spread);
        // The code of a page is about as near to a record as the center of the page.
        if (n < 100) return;
        var gap: f64 = 0;
        var length: f64 = 0;
        for (0..n) |vertex| {
            const page = opened.directory.page_of(@intCast(vertex));
            self.place_row(&opened, @intCast(vertex), row);
            const decoded = try testing.allocator.alloc(f32, row.len);
            defer testing.allocator.free(decoded);
            first.product.decode(scratch, first.codes[page * m.code_bytes ..][0..m.code_bytes], decoded);
            for (row, decoded) |x, y| {
                gap += (@as(f64, x) - y) * (@as(f64, x) - y);
                length += @as(f64, x) * x;
            }
        }
        try testing.expect(gap < 0.9 * length);
    }

    /// Each record has its code, and each page is at one center.
    fn check_records(self: *const Built, opened: *const Reader, own: *const page_codes.PageProducts, row: []f32, scratch: []f32) !void {
        const bytes = own.product.parts;
        const page_count = opened.directory.page_count();
        try testing.expectEqual(@as(usize, page_count) * own.count * bytes, own.record_codes.len);
        var seen = try base.BitSet.init(testing.allocator, page_count);
        defer seen.deinit(testing.allocator);
        for (own.by_center) |page| try testing.expect(seen.insert_new(page));
        try testing.expectEqual(page_count, own.center_starts[own.center_starts.len - 1]);
        for (0..page_count) |page| {
            const first = opened.directory.first_vertex(@intCast(page));
            const codes = own.record_codes[page * own.count * bytes ..][0 .. own.count * bytes];
            for (0..own.count) |place| {
                const record = @min(place, opened.directory.record_count(@intCast(page)) - 1);
                self.place_row(opened, @intCast(first + record), row);
                var code: [layout.page.code_bytes_max]u8 = undefined;
                own.product.encode(scratch, row, code[0..bytes]);
                try testing.expectEqualSlices(u8, code[0..bytes], codes[place * bytes ..][0..bytes]);
            }
        }
    }

    /// A row in the space of product codes.
    fn place_row(self: *const Built, opened: *const Reader, vertex: u32, row: []f32) void {
        @memcpy(row, self.rows[self.order[vertex] * row.len ..][0..row.len]);
        space.place(self.options.metric, row);
        for (row, opened.mean) |*value, mean| value.* -= mean;
    }
};

const small: Options = .{ .dim = 24, .n = 1500, .metric = .l2, .dtype = .f32, .degree = 24, .build_list_size = 40, .links_kept = 24, .page_codes = true, .page_links = false };

test "tables name the neighbors of a page with their codes, for every metric, type and number of threads" {
    for ([_]space.Metric{ .l2, .ip, .cosine }, [_]space.Dtype{ .f32, .u8, .f16 }, [_]bool{ false, true, false }, [_]u32{ 1, 2, 2 }) |metric, dtype, lists, threads| {
        errdefer std.debug.print("{t} {t} lists: {} threads: {d}\n", .{ metric, dtype, lists, threads });
        var options = small;
        options.metric = metric;
        options.dtype = dtype;
        options.page_links = lists;
        options.threads = threads;
        for ([_]u32{ 0, 12 }) |record_code_bytes| {
            options.record_code_bytes = record_code_bytes;
            var built: Built = undefined;
            defer built.deinit();
            try built.init(options);
            try built.check();
        }
    }
}

test "tables of the smallest indexes, and of pages that are larger" {
    for ([_][2]u32{ .{ 1, 1 }, .{ 2, 3 }, .{ 14, 5 }, .{ 60, 700 }, .{ 40, 1600 } }) |shape| for ([_]bool{ false, true }) |lists| {
        errdefer std.debug.print("{any} lists: {}\n", .{ shape, lists });
        var options = small;
        options.n, options.dim = shape;
        options.dtype = .i8;
        options.page_links = lists;
        options.memory_bits = 2;
        options.record_bits = 6;
        options.record_code_bytes = if (lists) @min(4, options.dim) else 0;
        var built: Built = undefined;
        defer built.deinit();
        try built.init(options);
        try built.check();
    };
}

test "partitions have tables, and one thread writes the same bytes" {
    var sums: [2]u64 = undefined;
    for (&sums) |*sum| {
        var options = small;
        options.n = 4000;
        options.record_code_bytes = 8;
        options.memory_bytes = option_room.memory_least(options, quant.dim_code_of(options.dim));
        var built: Built = undefined;
        defer built.deinit();
        try built.init(options);
        try testing.expect(built.partitions > 2);
        try built.check();
        sum.* = try built.manifest_sum();
        var dir = try std.fs.cwd().openDir(built.path, .{ .iterate = true });
        defer dir.close();
        var iterator = dir.iterate();
        while (try iterator.next()) |entry| try testing.expect(!std.mem.endsWith(u8, entry.name, ".work"));
    }
    try testing.expectEqual(sums[0], sums[1]);
}

test "a page has four to thirteen records in sixty percent, and pages grow for long ones" {
    for ([_]struct { u32, u32, u32 }{ .{ 16, 4096, 13 }, .{ 128, 4096, 13 }, .{ 384, 4096, 6 }, .{ 1536, 8192, 4 }, .{ 3072, 16384, 4 } }) |case| {
        const dim, const page_size, const records = case;
        const options: Options = .{ .dim = dim, .n = 1000, .metric = .l2, .dtype = .f32, .page_codes = true, .page_links = false };
        const geometry = options.page_geometry(.{ .dim = dim, .memory_bits = 2, .record_bits = 6 }, 0);
        try testing.expectEqual(page_size, geometry.page_size);
        try testing.expectEqual(records, options.page_records(geometry));
        try testing.expectEqual(quant.Product.parts_for(dim), geometry.code_bytes);
    }
}

test "a budget has the finest level that fits, and one that is too small names the least" {
    var built: Built = undefined;
    defer built.deinit();
    var options = small;
    options.record_code_bytes = 4;
    try built.init(options);
    const records = blk: {
        var opened = try Reader.open(testing.allocator, built.path, .{ .page_codes = .where_short }, &built.diagnostic);
        defer opened.deinit();
        try testing.expect(opened.page_products.?.record_codes.len > 0);
        break :blk opened.page_codes_kept();
    };
    var before: u64 = std.math.maxInt(u64);
    for ([_]u32{ records, 7, 3, 1 }) |count| {
        var opened = try Reader.open(testing.allocator, built.path, .{ .page_codes = .always, .memory_bytes = before - 1 }, &built.diagnostic);
        defer opened.deinit();
        try testing.expectEqual(count, opened.page_codes_kept());
        const needed = opened.memory_codes_bytes() + opened.memory_pages_bytes();
        try testing.expect(needed < before);
        const within = (try opened.page_codes_within(needed, &built.diagnostic)).?;
        try testing.expectEqual(count, within.kept);
        before = needed;
    }
    try testing.expectError(error.BudgetTooSmall, Reader.open(testing.allocator, built.path, .{ .page_codes = .always, .memory_bytes = before - 1 }, &built.diagnostic));
    try testing.expectEqual(before, built.diagnostic.needed_bytes);
    try testing.expectError(error.InvalidArgument, Reader.open(testing.allocator, built.path, .{ .page_codes = .always, .page_codes_kept = 2 }, &built.diagnostic));
}

test "a table that does not decode is noticed by verify, though every sum is right" {
    var built: Built = undefined;
    defer built.deinit();
    var options = small;
    options.record_code_bytes = 12;
    try built.init(options);
    const diagnostic = &built.diagnostic;
    var dir = try std.fs.cwd().openDir(built.path, .{});
    defer dir.close();
    const file = try dir.openFile(files.file_pages, .{ .mode = .read_write });
    defer file.close();
    var header: layout.headers.Pages = undefined;
    _ = try file.preadAll(std.mem.asBytes(&header), 0);
    const number = header.page_count / 2;
    const whole = try testing.allocator.alloc(u8, header.page_size);
    defer testing.allocator.free(whole);
    _ = try file.preadAll(whole, header.offset_of(number));
    const page = try testing.allocator.dupe(u8, whole);
    defer testing.allocator.free(page);
    const begin = std.mem.readInt(u16, page[22..24], .little);
    @memset(page[begin..], 0xff);
    std.mem.writeInt(u64, page[0..8], base.checksum(page[8..]), .little);
    try file.pwriteAll(page, header.offset_of(number));
    try recommit(testing.allocator, built.path, files.file_pages, &.{files.file_pages}, "null", diagnostic);
    var pages: u64 = 0;
    try testing.expectError(error.Corrupt, verify(testing.allocator, built.path, &pages, diagnostic));
    try testing.expectEqualStrings(files.file_pages, diagnostic.file());
    try testing.expectEqual(number, diagnostic.page);
    try file.pwriteAll(whole, header.offset_of(number));
    try recommit(testing.allocator, built.path, files.file_pages, &.{files.file_pages}, "null", diagnostic);
    try verify(testing.allocator, built.path, &pages, diagnostic);
}

test "numbers in page_codes.bin that no build writes are damage" {
    var built: Built = undefined;
    defer built.deinit();
    var options = small;
    options.record_code_bytes = 12;
    try built.init(options);
    const diagnostic = &built.diagnostic;
    var dir = try std.fs.cwd().openDir(built.path, .{});
    defer dir.close();
    const whole = try dir.readFileAlloc(testing.allocator, files.file_page_codes, 1 << 24);
    defer testing.allocator.free(whole);
    const header = std.mem.bytesToValue(layout.headers.PageProducts, whole[0..64]);
    for ([_]usize{ 0, 8, 12, 16, 20, 27, 31, 32, 36, 47, 59, 64, 68, 72, 79, 83, @intCast(header.cell_places().begin), @intCast(header.page_centers().begin) }) |at| {
        errdefer std.debug.print("byte {d}\n", .{at});
        const changed = try testing.allocator.dupe(u8, whole);
        defer testing.allocator.free(changed);
        changed[at] = 0xff;
        try dir.writeFile(.{ .sub_path = files.file_page_codes, .data = changed });
        try recommit(testing.allocator, built.path, files.file_page_codes, &.{files.file_page_codes}, "null", diagnostic);
        // Cells and centers of pages are not both in memory.
        const kept: ?u32 = if (at == header.cell_places().begin) 1 else null;
        try testing.expectError(error.Corrupt, Reader.open(testing.allocator, built.path, .{ .page_codes = .always, .page_codes_kept = kept }, diagnostic));
        try testing.expectEqualStrings(files.file_page_codes, diagnostic.file());
    }
}
