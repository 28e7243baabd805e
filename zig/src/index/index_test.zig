//! Build small indexes and read them back.
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Builder = @import("builder.zig").Builder;
const Options = @import("builder.zig").Options;
const Reader = @import("reader.zig").Reader;
const block_adjacency = @import("block_adjacency.zig");
const reader = @import("reader.zig");
const space = @import("space.zig");
const files = @import("files.zig");
const verify = @import("committed.zig").verify;
const vectors = @import("vectors.zig");
const recommit = @import("committed.zig").recommit;
const Diagnostic = @import("diagnostic.zig").Diagnostic;
const testing = std.testing;

fn build(path: []const u8, options: Options, rows: []const f32, diagnostic: *Diagnostic) !void {
    const builder = try Builder.open(testing.allocator, path, options, diagnostic);
    defer builder.close();
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    const stride = options.dim * 4;
    const half = options.n / 2;
    try builder.scan(bytes, half, stride, diagnostic);
    try builder.scan(bytes + half * stride, options.n - half, stride, diagnostic);
    try builder.add(bytes, half, stride, diagnostic);
    try builder.add(bytes + half * stride, options.n - half, stride, diagnostic);
    try builder.run(diagnostic);
    try builder.commit(&.{}, "{\"a\": 1}", diagnostic);
}

fn random_rows(allocator: std.mem.Allocator, n: usize, dim: usize, seed: u64) ![]f32 {
    var prng = base.Prng.init(seed);
    const rows = try allocator.alloc(f32, n * dim);
    for (rows) |*value| value.* = prng.gaussian();
    return rows;
}

const Place = struct {
    tmp: std.testing.TmpDir,
    buffer: [std.fs.max_path_bytes]u8 = undefined,
    path: []const u8 = "",

    fn init(self: *Place) !void {
        self.tmp = testing.tmpDir(.{});
        const parent = try self.tmp.dir.realpath(".", &self.buffer);
        self.path = try std.fmt.bufPrint(self.buffer[parent.len..], "{s}/x.velo", .{parent});
    }
};

test "what is built verifies, for every metric and many shapes" {
    for ([_]space.Metric{ .l2, .ip, .cosine }) |metric| {
        for ([_][2]u32{ .{ 1, 1 }, .{ 2, 3 }, .{ 700, 24 }, .{ 90, 260 } }) |shape| {
            var place: Place = undefined;
            try place.init();
            defer place.tmp.cleanup();
            var diagnostic: Diagnostic = .{};
            errdefer std.debug.print("{s} {s}\n", .{ diagnostic.message(), diagnostic.file() });
            const rows = try random_rows(testing.allocator, shape[0], shape[1], 5);
            defer testing.allocator.free(rows);
            try build(place.path, .{ .dim = shape[1], .n = shape[0], .metric = metric, .dtype = .f32, .degree = 16, .build_list_size = 32, .links_kept = 12 }, rows, &diagnostic);
            var pages: u64 = 0;
            try verify(testing.allocator, place.path, &pages, &diagnostic);
            try testing.expect(pages > 0);
            var opened = try Reader.open(testing.allocator, place.path, .{ .links_kept = 8 }, &diagnostic);
            defer opened.deinit();
            try testing.expectEqual(shape[0], opened.n());
            var ids: [64]u32 = undefined;
            for (0..opened.n()) |vertex| try testing.expect((try opened.links.?.decode(@intCast(vertex), &ids)).len <= 8);
        }
    }
}

test "where links of vertices have no room, stretches share lists: of other pages, and a vertex a page" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    errdefer std.debug.print("{s} {s}\n", .{ diagnostic.message(), diagnostic.file() });
    const n = 3003;
    const rows = try random_rows(testing.allocator, n, 24, 5);
    defer testing.allocator.free(rows);
    try build(place.path, .{ .dim = 24, .n = n, .metric = .l2, .dtype = .f32, .degree = 24, .build_list_size = 40, .links_kept = 24, .page_links = false }, rows, &diagnostic);
    const least = blk: {
        var opened = try Reader.open(testing.allocator, place.path, .{ .links_kept = 8 }, &diagnostic);
        defer opened.deinit();
        try testing.expectEqual(null, opened.block_adjacency);
        break :blk opened.memory_codes_bytes() + opened.memory_pages_bytes();
    };
    for (block_adjacency.shapes) |shape| {
        const needed = least + block_adjacency.estimate_bytes(shape, n);
        for ([_]reader.Options{ .{ .memory_bytes = needed, .threads = 2 }, .{ .links_kept = shape.kept() } }) |options| {
            var opened = try Reader.open(testing.allocator, place.path, options, &diagnostic);
            defer opened.deinit();
            try testing.expectEqual(null, opened.links);
            try testing.expectEqual(shape.kept(), opened.links_kept);
            try testing.expect(least + opened.memory_links_bytes() <= needed);
            const planned = (try opened.links_within(needed, &diagnostic)).?;
            try testing.expectEqual(shape.kept(), planned.kept);
            const block_links = &opened.block_adjacency.?;
            var stretch: u32 = 0;
            while (stretch * shape.stretch < n) : (stretch += 1) {
                var ids: [layout.adjacency.neighbors_max]u32 = undefined;
                const found = try block_links.decode(stretch, &ids);
                try testing.expect(found.len > 0 and found.len <= shape.links);
                var before: ?u32 = null;
                for (found) |id| {
                    const page = opened.directory.page_of(id);
                    if (before) |last| try testing.expect(page > last);
                    before = page;
                    const end = @min(n, (stretch + 1) * shape.stretch);
                    for (stretch * shape.stretch..end) |own| try testing.expect(page != opened.directory.page_of(@intCast(own)));
                }
            }
        }
    }
    const few = least + block_adjacency.estimate_bytes(block_adjacency.shapes[block_adjacency.shapes.len - 1], n);
    for ([_]u64{ least + 500, 500 }) |memory_bytes| {
        try testing.expectError(error.BudgetTooSmall, Reader.open(testing.allocator, place.path, .{ .memory_bytes = memory_bytes }, &diagnostic));
        try testing.expectEqual(few, diagnostic.needed_bytes);
    }
}

test "one thread and one seed give the same bytes" {
    var sums: [2]u64 = undefined;
    const rows = try random_rows(testing.allocator, 500, 32, 9);
    defer testing.allocator.free(rows);
    for (&sums) |*sum| {
        var place: Place = undefined;
        try place.init();
        defer place.tmp.cleanup();
        var diagnostic: Diagnostic = .{};
        try build(place.path, .{ .dim = 32, .n = 500, .metric = .l2, .dtype = .f32, .degree = 16, .build_list_size = 32 }, rows, &diagnostic);
        const path = try std.fs.path.join(testing.allocator, &.{ place.path, layout.manifest.file_name });
        defer testing.allocator.free(path);
        const text = try std.fs.cwd().readFileAlloc(testing.allocator, path, 1 << 20);
        defer testing.allocator.free(text);
        sum.* = base.checksum(text); // the manifest holds the sums of all files
    }
    try testing.expectEqual(sums[0], sums[1]);
}

test "a build that ends early leaves nothing that opens, and its folder can be used again" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const rows = try random_rows(testing.allocator, 100, 8, 1);
    defer testing.allocator.free(rows);
    rows[50 * 8 + 3] = std.math.nan(f32);
    const options: Options = .{ .dim = 8, .n = 100, .metric = .l2, .dtype = .f32, .degree = 8, .build_list_size = 16 };
    try testing.expectError(error.NotFinite, build(place.path, options, rows, &diagnostic));
    try testing.expectEqual(50, diagnostic.row);
    try testing.expectError(error.NotAnIndex, Reader.open(testing.allocator, place.path, .{}, &diagnostic));
    rows[50 * 8 + 3] = 0;
    try build(place.path, options, rows, &diagnostic);
    try testing.expectError(error.Exists, build(place.path, options, rows, &diagnostic));
    var again = options;
    again.overwrite = true;
    try build(place.path, again, rows, &diagnostic);
    try testing.expectError(error.BudgetTooSmall, Reader.open(testing.allocator, place.path, .{ .memory_bytes = 100 }, &diagnostic));
    try testing.expect(diagnostic.needed_bytes > 100);
}

test "two builds never share a folder" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const options: Options = .{ .dim = 8, .n = 10, .metric = .l2, .dtype = .f32 };
    const first = try Builder.open(testing.allocator, place.path, options, &diagnostic);
    try testing.expectError(error.Exists, Builder.open(testing.allocator, place.path, options, &diagnostic));
    first.close();
    const second = try Builder.open(testing.allocator, place.path, options, &diagnostic);
    second.close();
}

test "a flipped bit in any file is noticed by verify" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const rows = try random_rows(testing.allocator, 300, 16, 2);
    defer testing.allocator.free(rows);
    try build(place.path, .{ .dim = 16, .n = 300, .metric = .l2, .dtype = .f32, .degree = 8, .build_list_size = 16, .store_vectors = true }, rows, &diagnostic);
    var dir = try std.fs.cwd().openDir(place.path, .{ .iterate = true });
    defer dir.close();
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d} {s}\n", .{ seed, diagnostic.message() });
    var prng = base.Prng.init(seed);
    var iterator = dir.iterate();
    var pages: u64 = 0;
    while (try iterator.next()) |entry| {
        const file = try dir.openFile(entry.name, .{ .mode = .read_write });
        defer file.close();
        const size = try file.getEndPos();
        for (0..20) |_| {
            const at = prng.below(size);
            var byte: [1]u8 = undefined;
            _ = try file.preadAll(&byte, at);
            const flipped = [1]u8{byte[0] ^ (@as(u8, 1) << @intCast(prng.below(8)))};
            try file.pwriteAll(&flipped, at);
            errdefer std.debug.print("file {s} byte {d}\n", .{ entry.name, at });
            const result = verify(testing.allocator, place.path, &pages, &diagnostic);
            try testing.expect(if (result) |_| false else |err| err == error.Corrupt or err == error.UnsupportedVersion);
            try file.pwriteAll(&byte, at);
        }
        try verify(testing.allocator, place.path, &pages, &diagnostic);
        var last: [1]u8 = undefined;
        _ = try file.preadAll(&last, size - 1);
        try file.setEndPos(size - 1);
        try testing.expectError(error.Corrupt, verify(testing.allocator, place.path, &pages, &diagnostic));
        try file.pwriteAll(&last, size - 1);
        try verify(testing.allocator, place.path, &pages, &diagnostic);
    }
}

/// Writes over a part of a file, puts the new sum into the manifest and verifies.
fn verify_changed(path: []const u8, name: []const u8, at: u64, bytes: []const u8, diagnostic: *Diagnostic) !void {
    var dir = try std.fs.cwd().openDir(path, .{});
    defer dir.close();
    {
        const file = try dir.openFile(name, .{ .mode = .write_only });
        defer file.close();
        try file.pwriteAll(bytes, at);
    }
    try recommit(testing.allocator, path, name, &.{name}, "null", diagnostic);
    var pages: u64 = 0;
    try verify(testing.allocator, path, &pages, diagnostic);
}

test "a list that does not decode is noticed by verify, though every sum is right" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const rows = try random_rows(testing.allocator, 300, 16, 4);
    defer testing.allocator.free(rows);
    try build(place.path, .{ .dim = 16, .n = 300, .metric = .l2, .dtype = .f32, .degree = 8, .build_list_size = 16 }, rows, &diagnostic);
    var dir = try std.fs.cwd().openDir(place.path, .{});
    defer dir.close();

    // links.bin: the first list claims 255 neighbors.
    const links = try dir.readFileAlloc(testing.allocator, files.file_links, 1 << 20);
    defer testing.allocator.free(links);
    var header: layout.headers.Links = undefined;
    @memcpy(std.mem.asBytes(&header), links[0..@sizeOf(layout.headers.Links)]);
    const heap: usize = @intCast(header.resident_bytes() - header.heap_bytes);
    try testing.expectError(error.Corrupt, verify_changed(place.path, files.file_links, heap, &.{255}, &diagnostic));
    try testing.expectEqualStrings(files.file_links, diagnostic.file());
    try verify_changed(place.path, files.file_links, heap, links[heap..][0..1], &diagnostic);

    // pages.bin: the first list of the last page ends before its last neighbor.
    const pages = try dir.readFileAlloc(testing.allocator, files.file_pages, 1 << 24);
    defer testing.allocator.free(pages);
    var pages_header: layout.headers.Pages = undefined;
    @memcpy(std.mem.asBytes(&pages_header), pages[0..@sizeOf(layout.headers.Pages)]);
    const last = pages_header.page_count - 1;
    const offset = pages_header.offset_of(last);
    const page = pages[@intCast(offset)..][0..pages_header.page_size];
    const whole = try testing.allocator.dupe(u8, page);
    defer testing.allocator.free(whole);
    const record_count = std.mem.readInt(u16, page[20..22], .little);
    const lists = std.mem.readInt(u16, page[22..24], .little);
    std.mem.writeInt(u16, page[lists - 2 * record_count ..][0..2], 1, .little);
    std.mem.writeInt(u64, page[0..8], base.checksum(page[8..]), .little);
    try testing.expectError(error.Corrupt, verify_changed(place.path, files.file_pages, offset, page, &diagnostic));
    try testing.expectEqualStrings(files.file_pages, diagnostic.file());
    try testing.expectEqual(last, diagnostic.page);
    try verify_changed(place.path, files.file_pages, offset, whole, &diagnostic);
}

const stored: Options = .{ .dim = 16, .n = 300, .metric = .cosine, .dtype = .f32, .degree = 8, .build_list_size = 16, .store_vectors = true };

/// Builds without vectors; returns the row of every vertex.
fn build_unstored(path: []const u8, rows: []const f32, order: *[300]u32, diagnostic: *Diagnostic) !void {
    var options = stored;
    options.store_vectors = false;
    const builder = try Builder.open(testing.allocator, path, options, diagnostic);
    defer builder.close();
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    try builder.scan(bytes, options.n, options.dim * 4, diagnostic);
    try builder.add(bytes, options.n, options.dim * 4, diagnostic);
    try builder.run(diagnostic);
    @memcpy(order, builder.order.?);
    try builder.commit(&.{}, null, diagnostic);
}

fn file_sum(path: []const u8, name: []const u8) !u64 {
    const whole = try std.fs.path.join(testing.allocator, &.{ path, name });
    defer testing.allocator.free(whole);
    const text = try std.fs.cwd().readFileAlloc(testing.allocator, whole, 1 << 24);
    defer testing.allocator.free(text);
    return base.checksum(text);
}

test "vectors that come after placement are those that the second pass would have stored" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    errdefer std.debug.print("{s} {s}\n", .{ diagnostic.message(), diagnostic.file() });
    const rows = try random_rows(testing.allocator, 300, 16, 2);
    defer testing.allocator.free(rows);
    try build(place.path, stored, rows, &diagnostic);
    var other: Place = undefined;
    try other.init();
    defer other.tmp.cleanup();
    var options = stored;
    options.vectors_last = true;
    options.transient = true;
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    const builder = try Builder.open(testing.allocator, other.path, options, &diagnostic);
    {
        defer builder.close();
        try builder.scan(bytes, 300, 64, &diagnostic);
        try builder.add(bytes, 300, 64, &diagnostic);
        try testing.expectError(error.InvalidArgument, builder.add_vectors(bytes, 1, 64, &diagnostic));
        try builder.run(&diagnostic);
        const placed = try testing.allocator.alloc(f32, rows.len);
        defer testing.allocator.free(placed);
        for (builder.order.?, 0..) |row, vertex| @memcpy(placed[vertex * 16 ..][0..16], rows[row * 16 ..][0..16]);
        const placed_bytes: [*]const u8 = @ptrCast(placed.ptr);
        try testing.expectError(error.InvalidArgument, builder.commit(&.{}, null, &diagnostic));
        try builder.add_vectors(placed_bytes, 299, 64, &diagnostic);
        try testing.expectError(error.InvalidArgument, builder.add_vectors(placed_bytes, 2, 64, &diagnostic));
        try builder.add_vectors(placed_bytes + 299 * 64, 1, 64, &diagnostic);
        try builder.commit(&.{}, null, &diagnostic);
    }
    try testing.expectEqual(try file_sum(place.path, files.file_vectors), try file_sum(other.path, files.file_vectors));
    var pages: u64 = 0;
    try verify(testing.allocator, other.path, &pages, &diagnostic);
}

test "vectors stored in a finished index are those that its build would have stored" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    errdefer std.debug.print("{s} {s}\n", .{ diagnostic.message(), diagnostic.file() });
    const rows = try random_rows(testing.allocator, 300, 16, 2);
    defer testing.allocator.free(rows);
    try build(place.path, stored, rows, &diagnostic);
    const expected = try file_sum(place.path, files.file_vectors);
    var other: Place = undefined;
    try other.init();
    defer other.tmp.cleanup();
    var order: [300]u32 = undefined;
    try build_unstored(other.path, rows, &order, &diagnostic);

    const manifest_before = try file_sum(other.path, layout.manifest.file_name);
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    { // ended early: nothing is left of it
        var store = try vectors.Store.open(testing.allocator, other.path, 16, .f32, &order, &diagnostic);
        defer store.close();
        try store.add(bytes, 299, 64, &diagnostic);
        try testing.expectError(error.InvalidArgument, store.commit(&diagnostic));
        try testing.expectError(error.InvalidArgument, store.add(bytes, 2, 64, &diagnostic));
        try testing.expectEqualStrings("rows", diagnostic.argument);
    }
    try testing.expectEqual(manifest_before, try file_sum(other.path, layout.manifest.file_name));
    try testing.expectError(error.FileNotFound, file_sum(other.path, files.file_vectors));
    try testing.expectError(error.FileNotFound, file_sum(other.path, files.file_vectors ++ ".tmp"));

    {
        var store = try vectors.Store.open(testing.allocator, other.path, 16, .f32, &order, &diagnostic);
        defer store.close();
        try store.add(bytes, 100, 64, &diagnostic);
        try store.add(bytes + 100 * 64, 200, 64, &diagnostic);
        try store.commit(&diagnostic);
    }
    try testing.expectEqual(expected, try file_sum(other.path, files.file_vectors));
    try testing.expectError(error.FileNotFound, file_sum(other.path, files.file_vectors ++ ".tmp"));
    var pages: u64 = 0;
    try verify(testing.allocator, other.path, &pages, &diagnostic);
    var opened = try Reader.open(testing.allocator, other.path, .{}, &diagnostic);
    defer opened.deinit();
    try testing.expect(opened.manifest().stores_vectors);
    for (order, 0..) |row, vertex| {
        var found: [16]f32 = undefined;
        try opened.get_vectors(&.{@intCast(vertex)}, &found, &diagnostic);
        try testing.expectEqualSlices(f32, rows[row * 16 ..][0..16], &found);
    }
    try testing.expectError(error.InvalidArgument, vectors.Store.open(testing.allocator, other.path, 16, .f32, &order, &diagnostic));
}

test "an order that is none, and rows of another shape, are refused" {
    var place: Place = undefined;
    try place.init();
    defer place.tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const rows = try random_rows(testing.allocator, 300, 16, 2);
    defer testing.allocator.free(rows);
    var order: [300]u32 = undefined;
    try build_unstored(place.path, rows, &order, &diagnostic);
    var twice = order;
    twice[7] = twice[8];
    var beyond = order;
    beyond[7] = 300;
    for ([_][]const u32{ order[0..299], &twice, &beyond }) |bad| {
        try testing.expectError(error.InvalidArgument, vectors.Store.open(testing.allocator, place.path, 16, .f32, bad, &diagnostic));
        try testing.expectEqualStrings("order", diagnostic.argument);
    }
    try testing.expectError(error.InvalidArgument, vectors.Store.open(testing.allocator, place.path, 15, .f32, &order, &diagnostic));
    try testing.expectError(error.InvalidArgument, vectors.Store.open(testing.allocator, place.path, 16, .f16, &order, &diagnostic));
    try testing.expectEqualStrings("vectors", diagnostic.argument);
}

/// Rows of an index, as its codes tell them, by vertex; the caller's.
fn decoded_rows(opened: *const Reader, diagnostic: *Diagnostic) ![]f32 {
    const vertices = try testing.allocator.alloc(u32, opened.n());
    defer testing.allocator.free(vertices);
    for (vertices, 0..) |*vertex, i| vertex.* = @intCast(i);
    const out = try testing.allocator.alloc(f32, vertices.len * opened.header.dim_in);
    errdefer testing.allocator.free(out);
    try opened.decode_vectors(vertices, out, diagnostic);
    return out;
}

test "codes tell vectors as well as they promise, and an index made of them and of new rows has the same codes" {
    const n = 520;
    for ([_]@TypeOf(stored.metric){ .l2, .ip, .cosine }) |metric| for ([_]u32{ 20, 100 }) |dim| for ([_][2]u32{ .{ 4, 6 }, .{ 2, 0 }, .{ 6, 2 } }) |bits| for ([_]Came{ .near, .far, .few_far }) |kind| {
        var diagnostic: Diagnostic = .{};
        errdefer std.debug.print("{t}, dim {d}, bits {any}, {t}: {s} {s}\n", .{ metric, dim, bits, kind, diagnostic.message(), diagnostic.file() });
        var options: Options = .{ .dim = dim, .n = n, .metric = metric, .dtype = .f32, .memory_bits = bits[0], .record_bits = bits[1], .degree = 8, .build_list_size = 16, .page_links = dim != 20, .page_codes = dim == 100 };
        const rows = try random_rows(testing.allocator, n, dim, 5);
        defer testing.allocator.free(rows);
        @memset(rows[3 * dim ..][0..dim], 0);
        var place: Place = undefined;
        try place.init();
        defer place.tmp.cleanup();
        const order = try built_order(place.path, options, rows, null, &diagnostic);
        defer testing.allocator.free(order);
        var opened = try Reader.open(testing.allocator, place.path, .{}, &diagnostic);
        defer opened.deinit();
        try testing.expectError(error.Unsupported, opened.get_vectors(&.{0}, rows[0..dim], &diagnostic));
        const decoded = try decoded_rows(&opened, &diagnostic);
        defer testing.allocator.free(decoded);
        var error2: f64 = 0;
        var norm2: f64 = 0;
        for (order, 0..) |row, vertex| {
            const given = rows[row * dim ..][0..dim];
            space.place(metric, given);
            for (given, decoded[vertex * dim ..][0..dim]) |x, y| error2 += (@as(f64, x) - y) * (@as(f64, x) - y);
            norm2 += opened.codes.norm2_of(@intCast(vertex));
            if (row == 3 and metric == .cosine) for (decoded[vertex * dim ..][0..dim]) |y| try testing.expectEqual(0, y);
        }
        const promised = norm2 * opened.header.tan_full * opened.header.tan_full;
        try testing.expect(error2 <= 1.1 * promised and error2 >= 0.2 * promised);
        // One vertex alone, and out of order.
        var some: [2 * 100]f32 = undefined;
        try opened.decode_vectors(&.{ n - 1, 5 }, some[0 .. 2 * dim], &diagnostic);
        try testing.expectEqualSlices(f32, decoded[(n - 1) * dim ..], some[0..dim]);
        try testing.expectEqualSlices(f32, decoded[5 * dim ..][0..dim], some[dim .. 2 * dim]);
        try testing.expectError(error.InvalidArgument, opened.decode_vectors(&.{n}, some[0..dim], &diagnostic));

        // A seventh of them goes, others come.
        const removed = std.math.maxInt(u32);
        var new_rows: [n]u32 = undefined;
        var stayed: u32 = 0;
        for (&new_rows, 0..) |*row, vertex| {
            row.* = if (vertex % 7 == 2) removed else stayed;
            stayed += @intFromBool(vertex % 7 != 2);
        }
        const came: u32 = switch (kind) {
            .near => 60,
            .far => n,
            .few_far => 300,
        };
        const all = try random_rows(testing.allocator, stayed + came, dim, 6);
        defer testing.allocator.free(all);
        for (new_rows, 0..) |row, vertex| if (row != removed) @memcpy(all[row * dim ..][0..dim], decoded[vertex * dim ..][0..dim]);
        if (kind != .near) for (all[stayed * dim ..], 0..) |*x, i| {
            x.* = if (i % dim == 1) 40 + x.* else x.* / 8;
        };
        options.n = stayed + came;
        options.seed = 77;
        options.threads = 2;
        var other: Place = undefined;
        try other.init();
        defer other.tmp.cleanup();
        const then = try built_order(other.path, options, all, .{ .path = place.path, .rows = &new_rows }, &diagnostic);
        defer testing.allocator.free(then);
        var pages: u64 = 0;
        try verify(testing.allocator, other.path, &pages, &diagnostic);
        var merged = try Reader.open(testing.allocator, other.path, .{}, &diagnostic);
        defer merged.deinit();
        try testing.expectEqual(opened.header.rotation_seed, merged.header.rotation_seed);
        const again = try decoded_rows(&merged, &diagnostic);
        defer testing.allocator.free(again);
        const is_copied = std.mem.startsWith(f32, merged.codes.centers, opened.codes.centers);
        switch (kind) {
            .near => try testing.expect(is_copied),
            .far => {}, // they have centers of their own
            .few_far => try testing.expect(metric == .cosine or !is_copied), // there is none for them
        }
        error2 = 0;
        norm2 = 0;
        for (then, 0..) |row, vertex| {
            const given = all[row * dim ..][0..dim];
            const told = again[vertex * dim ..][0..dim];
            if (row < stayed and is_copied) {
                try testing.expectEqualSlices(f32, given, told);
                continue;
            }
            space.place(metric, given);
            for (given, told) |x, y| error2 += (@as(f64, x) - y) * (@as(f64, x) - y);
            norm2 += merged.codes.norm2_of(@intCast(vertex));
        }
        try testing.expect(error2 <= 1.2 * norm2 * merged.header.tan_full * merged.header.tan_full);
    };
}

/// Rows that come: like those that are there; far from these, and as many; or too few to have centers of their own.
const Came = enum { near, far, few_far };

const WarmStartOf = struct { path: []const u8, rows: []const u32 };

/// Builds; returns the row of every vertex, the caller's.
fn built_order(path: []const u8, options: Options, rows: []const f32, warm_start: ?WarmStartOf, diagnostic: *Diagnostic) ![]u32 {
    const builder = try Builder.open(testing.allocator, path, options, diagnostic);
    defer builder.close();
    if (warm_start) |one| try builder.go_on_from(one.path, one.rows, diagnostic);
    const bytes: [*]const u8 = @ptrCast(rows.ptr);
    try builder.scan(bytes, options.n, options.dim * 4, diagnostic);
    try builder.add(bytes, options.n, options.dim * 4, diagnostic);
    try builder.run(diagnostic);
    const order = try testing.allocator.dupe(u32, builder.order.?);
    errdefer testing.allocator.free(order);
    try builder.commit(&.{}, null, diagnostic);
    return order;
}
