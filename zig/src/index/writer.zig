//! From a graph and its placement to the files of the index, in placement order.
const std = @import("std");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const base = @import("base");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const page_codes = @import("page_codes.zig");
const work = @import("work.zig");
const vectors_file = @import("vectors.zig");
const Control = @import("options.zig").Control;
const ListFile = work.ListFile;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const assert = std.debug.assert;
const adjacency = layout.adjacency;
const page_lists = layout.page_lists;

const Input = struct {
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    neighbors: Neighbors,
    degree_max: u32,
    entry_row: u32,
    placement: *const graph.Placement,
    colors: []const u8, // by new id
    work_codes: *const work.CodesFile,
    work_vectors: ?*const work.GrowingFile,
    vector_bytes: u32,
    params: quant.CodeParams,
    geometry: layout.page.Geometry,
    links_kept: u32,
    rotation: *const quant.Rotation,
    /// Of codes in tables and of pages; null if there are no tables.
    product: ?*const quant.Product,
    /// Records that a page is to hold, if there are tables.
    page_records: u32,
    /// Whether each record has a code in page_codes.bin.
    record_codes: bool,
    header: layout.headers.Codes,
    mean: []const f32,
    centers: *const quant.Centers,
    control: *Control,
};

const NamedSummary = struct { name: []const u8, summary: files.Summary };

pub const Written = struct {
    files: std.ArrayList(NamedSummary) = .empty,
    links_built: u32 = 0,
    page_size: u32 = 0,
    page_count: u32 = 0,
    edges: u64 = 0,
    adjacency_bits: u64 = 0,

    pub fn deinit(self: *Written, allocator: std.mem.Allocator) void {
        self.files.deinit(allocator);
    }
};

/// The source of neighbor lists; neighbors are named by their rows.
pub const Neighbors = union(enum) {
    graph: *const graph.Graph,
    /// By row.
    rows: *ListFile,
    /// By vertex, which is a row's place in the order.
    placed: *ListFile,

    /// The neighbors of a row, before placement; valid until the next call.
    pub fn of_row(self: Neighbors, row: u32, diagnostic: *Diagnostic) Error![]const u32 {
        return switch (self) {
            .graph => |built| built.list(row),
            .rows => |file| file.read(row, diagnostic),
            .placed => unreachable,
        };
    }
};

/// Bytes of every record in a page, by row, if rows are placed in this order. Lists are only known after placement; but a
/// list takes nearly as much after another placement, for it is long where its neighbors are far.
pub fn record_sizes(allocator: std.mem.Allocator, neighbors: Neighbors, degree_max: u32, order: []const u32, geometry: layout.page.Geometry, sizes: []u16, diagnostic: *Diagnostic) Error!void {
    const new_of_old = try graph.inverse_of(allocator, order);
    defer base.free_untouched(allocator, new_of_old);
    const lists: Lists = .{ .neighbors = neighbors, .degree_max = degree_max, .order = order, .new_of_old = new_of_old, .diagnostic = diagnostic };
    const codec = try train_pages(lists, adjacency.neighbors_max);
    const fixed = geometry.record_bytes();
    var buffer: [adjacency.neighbors_max]u32 = undefined;
    for (order, 0..) |old, vertex| {
        const ids = try lists.of(@intCast(vertex), adjacency.neighbors_max, &buffer);
        sizes[old] = @intCast(fixed + codec.encoded_bytes(@intCast(vertex), ids));
    }
}

pub fn write(input: Input, diagnostic: *Diagnostic) Error!Written {
    const allocator = input.allocator;
    const new_of_old = try input.placement.inverse(allocator);
    defer allocator.free(new_of_old);
    const lists: Lists = .{ .neighbors = input.neighbors, .degree_max = input.degree_max, .order = input.placement.order, .new_of_old = new_of_old, .diagnostic = diagnostic };

    var written: Written = .{ .links_built = input.links_kept, .page_size = input.geometry.page_size };
    errdefer written.deinit(allocator);
    const starts = starts: {
        var tables: ?Tables = if (input.product != null) try .init(&input, lists) else null;
        defer if (tables) |*own| own.deinit();
        break :starts try write_pages(input, lists, if (tables) |*own| own else null, &written, diagnostic);
    };
    defer allocator.free(starts);
    if (input.product) |product| try write_page_codes(&input, product, starts, &written, diagnostic);
    try write_links(input, lists, &written, diagnostic);
    try write_codes(input, new_of_old[input.entry_row], &written, diagnostic);
    if (input.work_vectors) |vectors| try write_vectors(input, vectors, &written, diagnostic);
    return written;
}

/// Neighbor lists in placement ids, made as they are asked for.
const Lists = struct {
    neighbors: Neighbors,
    degree_max: u32,
    order: []const u32,
    new_of_old: []const u32,
    diagnostic: *Diagnostic,

    fn n(self: Lists) u32 {
        return @intCast(self.order.len);
    }

    /// Rows, as pruning ordered them; valid until the next call.
    fn rows_of(self: Lists, vertex: u32) Error![]const u32 {
        return switch (self.neighbors) {
            .graph => |built| built.list(self.order[vertex]),
            .rows => |file| file.read(self.order[vertex], self.diagnostic),
            .placed => |file| file.read(vertex, self.diagnostic),
        };
    }

    /// The first `kept` neighbors that pruning took, ascending.
    fn of(self: Lists, vertex: u32, kept: usize, buffer: *[adjacency.neighbors_max]u32) Error![]u32 {
        const old = try self.rows_of(vertex);
        const count = @min(kept, old.len);
        for (old[0..count], buffer[0..count]) |id, *slot| slot.* = self.new_of_old[id];
        std.mem.sortUnstable(u32, buffer[0..count], {}, std.sort.asc(u32));
        // A list names a neighbor once; a duplicate would have no gap to be stored as.
        var unique: usize = 0;
        for (buffer[0..count]) |id| {
            if (unique > 0 and buffer[unique - 1] == id) continue;
            buffer[unique] = id;
            unique += 1;
        }
        return buffer[0..unique];
    }
};

/// Counts the first `kept` neighbors of vertices.
fn count_lists(statistics: anytype, lists: Lists, kept: usize) Error!void {
    var buffer: [adjacency.neighbors_max]u32 = undefined;
    const n = lists.n();
    const stride = @max(1, n / 200_000);
    var vertex: u32 = 0;
    while (vertex < n) : (vertex += stride) statistics.count(vertex, try lists.of(vertex, kept, &buffer));
}

/// For lists of at most `most` neighbors.
fn train_pages(lists: Lists, most: u32) Error!page_lists.Codec {
    var statistics: page_lists.Codec.Statistics = .init(@min(most, lists.degree_max));
    try count_lists(&statistics, lists, most);
    return .train(&statistics);
}

/// The first vertex of each page.
fn write_pages(input: Input, lists: Lists, tables: ?*Tables, written: *Written, diagnostic: *Diagnostic) Error![]u32 {
    const allocator = input.allocator;
    const n = lists.n();
    const geometry = input.geometry;
    const most: u8 = if (geometry.lists) adjacency.neighbors_max else 0;
    const codec = if (tables) |own| try own.train(most) else try train_pages(lists, most);
    var starts: std.ArrayList(u32) = .empty;
    defer starts.deinit(allocator);
    const page = try allocator.alloc(u8, geometry.page_size);
    defer allocator.free(page);
    const row_buffer = try allocator.alloc(u8, input.work_codes.row_bytes);
    defer allocator.free(row_buffer);

    // The header names the page count, which splitting may raise: so it is written last, over a placeholder.
    var file = try files.FileWriter.create(allocator, input.dir, files.file_pages, diagnostic);
    defer file.deinit();
    @memset(page, 0);
    try file.write(page);

    var group: usize = 0;
    var first: u32 = 0;
    while (first < n) {
        try input.control.check();
        const wanted = group_from(input.placement, &group, first);
        var set: RecordSet = .{ .kept = @splat(most) };
        const count = try set.fill(lists, &codec, geometry, first, @min(wanted, layout.page.records_max));
        if (count == 0) {
            diagnostic.say("a record does not fit a page of {d} bytes", .{geometry.page_size});
            return error.Internal;
        }
        var composer = layout.page.Composer.init(page, geometry, @intCast(starts.items.len), first, count);
        for (0..count) |i| {
            const vertex = first + @as(u32, @intCast(i));
            const row = try input.work_codes.read(input.placement.order[vertex], row_buffer, diagnostic);
            var buffer: [adjacency.neighbors_max]u32 = undefined;
            const ids = try lists.of(vertex, set.kept[i], &buffer);
            var list: [2048]u8 = undefined;
            const list_bytes = if (geometry.lists) codec.encode(vertex, ids, &list) else 0;
            composer.add(.{ .code = row.upper, .factors = row.memory_factors, .center = row.center }, row.lower, row.record_factors.offset, row.record_factors.ratio, input.colors[vertex], list[0..list_bytes]);
            written.edges += ids.len;
            written.adjacency_bits += codec.encoded_bits(vertex, ids);
        }
        if (tables) |own| try own.add(&composer, &codec, first, count);
        composer.seal();
        try file.write(page);
        try starts.append(allocator, first);
        first += count;
        input.control.done.store(first / 2, .monotonic);
    }
    written.page_count = @intCast(starts.items.len);

    var header: layout.headers.Pages = .{
        .checksum = 0,
        .page_size = geometry.page_size,
        .page_count = written.page_count,
        .salt = geometry.salt,
        .lower_bytes = geometry.lower_bytes,
        .codec = undefined,
    };
    codec.store(&header.codec);
    header.checksum = base.checksum(std.mem.asBytes(&header)[16..]);
    @memset(page, 0);
    @memcpy(page[0..@sizeOf(layout.headers.Pages)], std.mem.asBytes(&header));
    const summary = try file.finish_with_header(page);
    try written.files.append(allocator, .{ .name = files.file_pages, .summary = summary });

    const bytes = try allocator.alloc(u8, layout.page_starts.encoded_bytes(n, written.page_count));
    defer allocator.free(bytes);
    layout.page_starts.encode(n, starts.items, bytes);
    try write_whole(input, files.file_page_starts, &.{bytes}, written, diagnostic);
    return starts.toOwnedSlice(allocator);
}

/// The number of records from `first` on that would share a page. A group begins a page; the few records that the page before had
/// no room for begin it together with the group that follows, so that they do not leave a page of their own nearly empty.
fn group_from(placement: *const graph.Placement, group: *usize, first: u32) u32 {
    while (placement.page(group.*).to <= first) group.* += 1;
    const own = placement.page(group.*);
    const left = own.to - first;
    if (left * carried_share <= own.to - own.from and group.* + 1 < placement.page_first.len) return placement.page(group.* + 1).to - first;
    return left;
}

/// A page carries over at most one in four of a group's records.
const carried_share = 4;

/// The number of records of a group that share a page, and of the neighbors of each. Sizes were guesses until now: a group
/// that is a little too large gives up its least important edges (the last that pruning took, of the longest lists);
/// what then does not fit goes on in another page.
const RecordSet = struct {
    kept: [layout.page.records_max]u8,

    /// Edges a page may give up: about one in thirty.
    const give_up_share = 30;

    fn fill(self: *RecordSet, lists: Lists, codec: *const page_lists.Codec, geometry: layout.page.Geometry, first: u32, wanted: u32) Error!u32 {
        var sizes: [layout.page.records_max]u32 = undefined;
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        var total: u32 = if (geometry.code_bytes > 0) layout.page.table_bytes_min else 0;
        var edges: u32 = 0;
        for (0..wanted) |i| {
            const vertex = first + @as(u32, @intCast(i));
            const ids = try lists.of(vertex, self.kept[i], &buffer);
            self.kept[i] = @intCast(ids.len);
            edges += @intCast(ids.len);
            sizes[i] = if (geometry.lists) codec.encoded_bytes(vertex, ids) else 0;
            total += sizes[i];
        }
        var count = wanted;
        var given_up: u32 = 0;
        while (geometry.bytes_needed(count, total) > geometry.page_size) {
            if (given_up < edges / give_up_share or (geometry.lists and count == 1)) {
                const longest = std.mem.indexOfMax(u8, self.kept[0..count]);
                if (self.kept[longest] == 0) return 0;
                self.kept[longest] -= 1;
                given_up += 1;
                const vertex = first + @as(u32, @intCast(longest));
                const size = codec.encoded_bytes(vertex, try lists.of(vertex, self.kept[longest], &buffer));
                total = total - sizes[longest] + size;
                sizes[longest] = size;
            } else {
                count -= 1;
                total -= sizes[count];
            }
        }
        return count;
    }
};

// ---- tables of neighbors ----

/// Chooses the neighbors in the tables of pages: those outside the page that most links of its records name, where the first
/// links of a list count more than the last.
const Tables = struct {
    input: *const Input,
    lists: Lists,
    /// By vertex.
    codes: work.GrowingFile,
    targets: std.ArrayList(Target) = .empty,
    ids: [layout.page.table_max]u32 = undefined,
    page_code: []u8,
    window: []u8,

    const Target = struct {
        id: u32,
        weight: u32,

        fn by_id(_: void, a: Target, b: Target) bool {
            return a.id < b.id;
        }

        fn by_weight(_: void, a: Target, b: Target) bool {
            return if (a.weight != b.weight) a.weight > b.weight else a.id < b.id;
        }
    };

    /// By the tier of a link.
    const weights = [_]u32{ 10, 8, 7, 6, 5, 4, 3, 3 };
    /// Links of each record that count.
    const links_max = 32;
    /// Neighbors whose codes are this near to each other are read together.
    const window_bytes = 1 << 14;
    /// Pages whose lists are counted for the codec.
    const pages_counted = 15_000;
    /// Bytes of an id in a table, by experience.
    const id_bytes = 1.25;

    fn init(input: *const Input, lists: Lists) Error!Tables {
        const allocator = input.allocator;
        const diagnostic = lists.diagnostic;
        var codes = try work.GrowingFile.create(allocator, input.dir, work.placed_codes_name, diagnostic);
        errdefer codes.deinit();
        const row_buffer = try allocator.alloc(u8, input.work_codes.row_bytes);
        defer allocator.free(row_buffer);
        for (input.placement.order, 0..) |row, vertex| {
            if (vertex % 4096 == 0) try input.control.check();
            try codes.append((try input.work_codes.read(row, row_buffer, diagnostic)).product, diagnostic);
        }
        try codes.flush(diagnostic);
        const page_code = try allocator.alloc(u8, input.geometry.page_size);
        errdefer allocator.free(page_code);
        return .{ .input = input, .lists = lists, .codes = codes, .page_code = page_code, .window = try allocator.alloc(u8, window_bytes) };
    }

    fn deinit(self: *Tables) void {
        const allocator = self.input.allocator;
        self.targets.deinit(allocator);
        self.codes.deinit();
        allocator.free(self.page_code);
        allocator.free(self.window);
        self.input.dir.deleteFile(work.placed_codes_name) catch {};
    }

    /// For tables and for lists of at most `most` neighbors.
    fn train(self: *Tables, most: u32) Error!page_lists.Codec {
        var statistics: page_lists.Codec.Statistics = .init(layout.page.table_max);
        if (most > 0) try count_lists(&statistics, self.lists, most);
        const geometry = self.input.geometry;
        const pages = self.input.placement.page_first.len;
        const stride = @max(1, pages / pages_counted);
        var page: usize = 0;
        while (page < pages) : (page += stride) {
            if (page % 64 == 0) try self.input.control.check();
            const group = self.input.placement.page(page);
            const targets = try self.choose(group.from, group.to - group.from);
            const room = geometry.page_size -| geometry.bytes_needed(group.to - group.from, 0);
            const fits: usize = @intFromFloat(@as(f64, @floatFromInt(room)) / (@as(f64, @floatFromInt(geometry.code_bytes)) + id_bytes));
            statistics.count(group.from, self.sorted(@min(targets.len, fits)));
        }
        return .train(&statistics);
    }

    /// Targets of a page's links, most important first; those that a table may hold.
    fn choose(self: *Tables, first: u32, count: u32) Error![]const Target {
        const allocator = self.input.allocator;
        self.targets.clearRetainingCapacity();
        for (first..first + count) |vertex| {
            const rows = try self.lists.rows_of(@intCast(vertex));
            for (rows[0..@min(rows.len, links_max)], 0..) |row, place| {
                const id = self.lists.new_of_old[row];
                if (id >= first and id < first + count) continue;
                try self.targets.append(allocator, .{ .id = id, .weight = weights[layout.links.tier_of(place)] });
            }
        }
        std.sort.pdq(Target, self.targets.items, {}, Target.by_id);
        var unique: usize = 0;
        for (self.targets.items) |target| {
            if (unique > 0 and self.targets.items[unique - 1].id == target.id) {
                self.targets.items[unique - 1].weight += target.weight;
                continue;
            }
            self.targets.items[unique] = target;
            unique += 1;
        }
        self.targets.shrinkRetainingCapacity(unique);
        std.sort.pdq(Target, self.targets.items, {}, Target.by_weight);
        return self.targets.items[0..@min(unique, layout.page.table_max)];
    }

    /// Ids of the most important targets, ascending.
    fn sorted(self: *Tables, count: usize) []u32 {
        for (self.targets.items[0..count], self.ids[0..count]) |target, *id| id.* = target.id;
        std.sort.pdq(u32, self.ids[0..count], {}, std.sort.asc(u32));
        return self.ids[0..count];
    }

    /// Adds the table to a page that has all its records: as many neighbors as have room.
    fn add(self: *Tables, composer: *layout.page.Composer, codec: *const page_lists.Codec, first: u32, count: u32) Error!void {
        const code_bytes = composer.geometry.code_bytes;
        const room = composer.room();
        const targets = try self.choose(first, count);
        assert(room >= layout.page.table_bytes_min);
        var kept = @min(targets.len, room / code_bytes);
        while (true) {
            const bytes = codec.encoded_bytes(first, self.sorted(kept)) + kept * code_bytes;
            if (bytes <= room) break;
            kept -= @min(kept, @max(1, (bytes - room) / (code_bytes + 2)));
        }
        while (kept < targets.len and codec.encoded_bytes(first, self.sorted(kept + 1)) + (kept + 1) * code_bytes <= room) kept += 1;
        const ids = self.sorted(kept);
        var list: [2048]u8 = undefined;
        const length = codec.encode(first, ids, &list);
        try self.read_codes(ids);
        composer.add_table(list[0..length], self.page_code[0 .. kept * code_bytes]);
    }

    /// Leaves the codes of these vertices in `page_code`.
    fn read_codes(self: *Tables, ids: []const u32) Error!void {
        const code_bytes = self.input.geometry.code_bytes;
        const reach = self.window.len / code_bytes;
        var done: usize = 0;
        while (done < ids.len) {
            const first = ids[done];
            var end = done + 1;
            while (end < ids.len and ids[end] - first < reach) end += 1;
            const bytes = self.window[0 .. (ids[end - 1] - first + 1) * code_bytes];
            try self.codes.read_at(bytes, @as(u64, first) * code_bytes, self.lists.diagnostic);
            for (ids[done..end], done..) |id, place| @memcpy(self.page_code[place * code_bytes ..][0..code_bytes], bytes[(id - first) * code_bytes ..][0..code_bytes]);
            done = end;
        }
    }
};

fn write_links(input: Input, lists: Lists, written: *Written, diagnostic: *Diagnostic) Error!void {
    const allocator = input.allocator;
    const n = lists.n();
    var statistics: adjacency.Codec.Statistics = .{};
    try count_lists(&statistics, lists, input.links_kept);
    const codec = adjacency.Codec.train(&statistics);
    const group_size = layout.links.group_size;
    const groups = layout.links.group_count(n);
    const lengths = try base.alloc_untouched(allocator, u8, @as(usize, groups) * group_size);
    defer base.free_untouched(allocator, lengths);
    @memset(lengths, 0);
    const begins = try base.alloc_untouched(allocator, u64, groups + 1);
    defer base.free_untouched(allocator, begins);
    var heap_bytes: u64 = 0;
    var buffer: [adjacency.neighbors_max]u32 = undefined;
    // Two turns, first for the lengths: the heap is never in memory as a whole.
    for (0..n) |vertex| {
        if (vertex % group_size == 0) begins[vertex / group_size] = heap_bytes;
        const ids = fitting(&codec, @intCast(vertex), try lists.of(@intCast(vertex), input.links_kept, &buffer));
        lengths[vertex] = @intCast(codec.encoded_bytes(@intCast(vertex), ids));
        heap_bytes += lengths[vertex];
    }
    begins[groups] = heap_bytes;
    var header: layout.headers.Links = .{ .n = n, .links_built = input.links_kept, .heap_bytes = heap_bytes + adjacency.over_read_bytes, .codec = undefined };
    codec.store(&header.codec);
    var file = try files.FileWriter.create(allocator, input.dir, files.file_links, diagnostic);
    defer file.deinit();
    try file.write(std.mem.asBytes(&header));
    try file.write(std.mem.sliceAsBytes(begins));
    try file.write(lengths);
    for (0..n) |vertex| {
        if (vertex % 4096 == 0) try input.control.check();
        const ids = fitting(&codec, @intCast(vertex), try lists.of(@intCast(vertex), input.links_kept, &buffer));
        var list: [layout.links.list_bytes_max]u8 = undefined;
        try file.write(list[0..codec.encode(@intCast(vertex), ids, &list)]);
        input.control.done.store((n + vertex / 2) / 2, .monotonic);
    }
    try file.write(&@as([adjacency.over_read_bytes]u8, @splat(0)));
    const tiers = try allocator.alloc(u8, layout.links.tier_bytes(input.links_kept));
    defer allocator.free(tiers);
    for (0..n) |vertex| {
        if (vertex % 4096 == 0) try input.control.check();
        const ids = fitting(&codec, @intCast(vertex), try lists.of(@intCast(vertex), input.links_kept, &buffer));
        @memset(tiers, 0);
        const pruned = try lists.rows_of(@intCast(vertex));
        for (ids, 0..) |id, link|
            layout.links.put_tier(tiers, link, layout.links.tier_of(std.mem.indexOfScalar(u32, pruned, input.placement.order[id]).?));
        try file.write(tiers);
    }
    try written.files.append(allocator, .{ .name = files.file_links, .summary = try file.finish() });
}

fn fitting(codec: *const adjacency.Codec, vertex: u32, ids: []u32) []u32 {
    var kept = ids;
    while (codec.encoded_bytes(vertex, kept) > layout.links.list_bytes_max) kept = kept[0 .. kept.len - 1];
    return kept;
}

fn write_codes(input: Input, entry_vertex: u32, written: *Written, diagnostic: *Diagnostic) Error!void {
    const allocator = input.allocator;
    const errors = &input.work_codes.errors;
    var header = input.header;
    header.entry_vertex = entry_vertex;
    const count: f64 = @floatFromInt(@max(1, errors.count));
    header.tan_upper = @floatCast(@sqrt(errors.tan2_upper / count));
    header.tan_full = @floatCast(@sqrt(errors.tan2_full / count));
    header.norm2_per_f2 = @floatCast(errors.norm2_per_f2 / count);
    var file = try files.FileWriter.create(allocator, input.dir, files.file_codes, diagnostic);
    defer file.deinit();
    try file.write(std.mem.asBytes(&header));
    try file.write(std.mem.sliceAsBytes(input.mean));
    try file.write(std.mem.sliceAsBytes(input.centers.rows));
    const zeros: [64]u8 = @splat(0);
    try file.write(zeros[0..@intCast(header.codes_offset() - header.centers_offset() - header.centers_bytes())]);
    const row_buffer = try allocator.alloc(u8, input.work_codes.row_bytes);
    defer allocator.free(row_buffer);
    const factors = try base.alloc_untouched(allocator, u32, input.placement.order.len);
    defer base.free_untouched(allocator, factors);
    const center_ids = try base.alloc_untouched(allocator, u8, input.placement.order.len);
    defer base.free_untouched(allocator, center_ids);
    for (input.placement.order, factors, center_ids, 0..) |old, *pair, *center, vertex| {
        if (vertex % 4096 == 0) try input.control.check();
        const row = try input.work_codes.read(old, row_buffer, diagnostic);
        try file.write(row.upper);
        pair.* = row.memory_factors;
        center.* = row.center;
        input.control.done.store((3 * @as(u64, input.placement.order.len) + vertex) / 4, .monotonic);
    }
    try file.write(zeros[0..@intCast(header.factors_offset() - header.codes_offset() - header.n * header.code_bytes())]);
    try file.write(std.mem.sliceAsBytes(factors));
    try file.write(center_ids);
    try file.write(&zeros);
    try written.files.append(allocator, .{ .name = files.file_codes, .summary = try file.finish() });
}

fn write_vectors(input: Input, vectors: *const work.GrowingFile, written: *Written, diagnostic: *Diagnostic) Error!void {
    var file = try vectors_file.Writer.create(input.allocator, input.dir, .of(input.vector_bytes, input.geometry.salt), diagnostic);
    defer file.deinit();
    const row = try input.allocator.alloc(u8, input.vector_bytes);
    defer input.allocator.free(row);
    for (input.placement.order, 0..) |old, vertex| {
        if (vertex % 4096 == 0) try input.control.check();
        try vectors.read_at(row, @as(u64, old) * row.len, diagnostic);
        try file.add(row);
    }
    try written.files.append(input.allocator, .{ .name = files.file_vectors, .summary = try file.finish() });
}

fn write_whole(input: Input, name: []const u8, parts: []const []const u8, written: *Written, diagnostic: *Diagnostic) Error!void {
    var file = try files.FileWriter.create(input.allocator, input.dir, name, diagnostic);
    defer file.deinit();
    for (parts) |part| try file.write(part);
    try written.files.append(input.allocator, .{ .name = name, .summary = try file.finish() });
}

// ---- page_codes.bin ----

/// Pages are walked once for each level, so that of all codes only those of cells wait in memory.
fn write_page_codes(input: *const Input, product: *const quant.Product, starts: []const u32, written: *Written, diagnostic: *Diagnostic) Error!void {
    const allocator = input.allocator;
    const n: u32 = @intCast(input.header.n);
    const records = @min(n, input.page_records);
    var header = page_codes.product_header_of(@intCast(starts.len), records, input.record_codes, input.geometry.code_bytes, @intCast(product.stored_bytes()), product.error2);
    var makers: PageCodeMakers = try .init(input, product);
    defer makers.deinit();
    var cells: Cells = try .init(allocator, &header, makers.dim);
    defer cells.deinit(allocator);
    var file = try files.FileWriter.create(allocator, input.dir, files.file_page_codes, diagnostic);
    defer file.deinit();
    try file.write(std.mem.asBytes(&header));
    {
        const bytes = try allocator.alloc(u8, header.product_bytes);
        defer allocator.free(bytes);
        product.store(bytes);
        try file.write(bytes);
    }
    const page_centers = try allocator.alloc(u8, if (header.record_codes > 0) starts.len else 0);
    defer allocator.free(page_centers);
    var at = header.product().end;
    for (header.counts[0..header.level_count], 0..) |count, number| {
        const level = header.level(number);
        try write_zeros(&file, level.begin - at);
        var spread: f64 = 0;
        for (starts, 0..) |first, page| {
            if (page % 64 == 0) try input.control.check();
            const end = if (page + 1 < starts.len) starts[page + 1] else n;
            try makers.load(input, first, end, diagnostic);
            var centers = try quant.Centers.train(allocator, makers.dim, makers.rows.items, @min(count, end - first));
            defer centers.deinit(allocator);
            spread += centers.spread(makers.rows.items);
            for (0..count) |i| {
                // Of a page with fewer records the last stands for the others.
                if (i < centers.count()) makers.encode(centers.at(@intCast(i)));
                try file.write(makers.code);
            }
            if (number > 0) continue;
            cells.add(centers.at(0), makers.code);
            if (page_centers.len > 0) page_centers[page] = input.centers.nearest(centers.at(0));
        }
        header.spreads[number] = @floatCast(@min(page_codes.spread_share * spread / @as(f64, @floatFromInt(n)), std.math.floatMax(f32)));
        at = level.end;
    }
    if (header.record_codes > 0) {
        try write_zeros(&file, header.records().begin - at);
        for (starts, 0..) |first, page| {
            if (page % 64 == 0) try input.control.check();
            const end = if (page + 1 < starts.len) starts[page + 1] else n;
            assert(end - first <= header.record_codes);
            var code: []const u8 = undefined;
            for (first..first + header.record_codes) |vertex| {
                // Behind the last record its code is repeated.
                if (vertex < end) code = (try input.work_codes.read(input.placement.order[vertex], makers.stored, diagnostic)).product;
                try file.write(code);
            }
        }
        try write_zeros(&file, header.page_centers().begin - header.records().end);
        try file.write(page_centers);
        at = header.page_centers().end;
    }
    try write_zeros(&file, header.cell_codes().begin - at);
    try file.write(cells.codes);
    try write_zeros(&file, header.cell_places().begin - header.cell_codes().end);
    try file.write(cells.places);
    header.f_upper_max = makers.f_upper_max;
    try written.files.append(allocator, .{ .name = files.file_page_codes, .summary = try file.finish_with_header(std.mem.asBytes(&header)) });
}

fn write_zeros(file: *files.FileWriter, count: u64) Error!void {
    try file.write((&@as([128]u8, @splat(0)))[0..@intCast(count)]);
}

/// Chooses for each cell the page whose center is nearest to the mean of all its pages' centers.
const Cells = struct {
    dim: usize,
    code_bytes: usize,
    codes: []u8,
    places: []u8,
    page_count: usize,
    /// Of the pages of the current cell, and their codes.
    centers: []f32,
    page_codes: []u8,
    /// Of these centers, times their number.
    sum: []f64,
    done: usize = 0,

    const cell_pages = layout.headers.PageProducts.cell_pages;

    fn init(allocator: std.mem.Allocator, header: *const layout.headers.PageProducts, dim: u32) error{OutOfMemory}!Cells {
        const codes = try allocator.alloc(u8, header.cell_count() * header.code_bytes);
        errdefer allocator.free(codes);
        const places = try allocator.alloc(u8, header.cell_count());
        errdefer allocator.free(places);
        const centers = try allocator.alloc(f32, cell_pages * dim);
        errdefer allocator.free(centers);
        const own_codes = try allocator.alloc(u8, cell_pages * header.code_bytes);
        errdefer allocator.free(own_codes);
        const sum = try allocator.alloc(f64, dim);
        @memset(sum, 0);
        return .{
            .dim = dim,
            .code_bytes = header.code_bytes,
            .codes = codes,
            .places = places,
            .page_count = header.page_count,
            .centers = centers,
            .page_codes = own_codes,
            .sum = sum,
        };
    }

    fn deinit(self: *Cells, allocator: std.mem.Allocator) void {
        allocator.free(self.codes);
        allocator.free(self.places);
        allocator.free(self.centers);
        allocator.free(self.page_codes);
        allocator.free(self.sum);
    }

    /// The next page.
    fn add(self: *Cells, center: []const f32, code: []const u8) void {
        const place = self.done % cell_pages;
        @memcpy(self.centers[place * self.dim ..][0..self.dim], center);
        @memcpy(self.page_codes[place * self.code_bytes ..][0..self.code_bytes], code);
        for (self.sum, center) |*sum, value| sum.* += value;
        self.done += 1;
        if (place + 1 == cell_pages or self.done == self.page_count) self.close(place + 1);
    }

    fn close(self: *Cells, pages: usize) void {
        var best: usize = 0;
        var least = std.math.inf(f64);
        for (0..pages) |place| {
            var gap2: f64 = 0;
            for (self.centers[place * self.dim ..][0..self.dim], self.sum) |value, sum| {
                const gap = value - sum / @as(f64, @floatFromInt(pages));
                gap2 += gap * gap;
            }
            if (gap2 >= least) continue;
            least = gap2;
            best = place;
        }
        @memset(self.sum, 0);
        const cell = (self.done - 1) / cell_pages;
        self.places[cell] = @intCast(best);
        @memcpy(self.codes[cell * self.code_bytes ..][0..self.code_bytes], self.page_codes[best * self.code_bytes ..][0..self.code_bytes]);
    }
};

/// Buffers for codes of pages.
const PageCodeMakers = struct {
    allocator: std.mem.Allocator,
    dim: u32,
    centers: *const quant.Centers,
    rotation: *const quant.Rotation,
    product: *const quant.Product,
    /// The records of a page, from their whole codes, in the codes' space.
    rows: std.ArrayList(f32) = .empty,
    stored: []u8,
    levels: []u16,
    /// A center in the codes' space and before rotation.
    rotated: []f32,
    turned_back: []f32,
    scratch: []f32,
    code: []u8,
    f_upper_max: f32 = 0,

    fn init(input: *const Input, product: *const quant.Product) error{OutOfMemory}!PageCodeMakers {
        const allocator = input.allocator;
        const dim = input.params.dim;
        const stored = try allocator.alloc(u8, input.work_codes.row_bytes);
        errdefer allocator.free(stored);
        const levels = try allocator.alloc(u16, dim);
        errdefer allocator.free(levels);
        const rotated = try allocator.alloc(f32, dim);
        errdefer allocator.free(rotated);
        const turned_back = try allocator.alloc(f32, input.header.dim_in);
        errdefer allocator.free(turned_back);
        const scratch = try allocator.alloc(f32, product.scratch_len());
        errdefer allocator.free(scratch);
        return .{
            .allocator = allocator,
            .dim = dim,
            .centers = input.centers,
            .rotation = input.rotation,
            .product = product,
            .stored = stored,
            .levels = levels,
            .rotated = rotated,
            .turned_back = turned_back,
            .scratch = scratch,
            .code = try allocator.alloc(u8, input.geometry.code_bytes),
        };
    }

    fn deinit(self: *PageCodeMakers) void {
        self.rows.deinit(self.allocator);
        for ([_][]f32{ self.rotated, self.turned_back, self.scratch }) |buffer| self.allocator.free(buffer);
        self.allocator.free(self.stored);
        self.allocator.free(self.levels);
        self.allocator.free(self.code);
    }

    fn load(self: *PageCodeMakers, input: *const Input, first: u32, end: u32, diagnostic: *Diagnostic) Error!void {
        try self.rows.resize(self.allocator, @as(usize, end - first) * self.dim);
        for (first..end, 0..) |vertex, i| {
            const row = try input.work_codes.read(input.placement.order[vertex], self.stored, diagnostic);
            const f_upper = quant.PositiveFloat.decode(@intCast(row.memory_factors >> 16));
            const f_full = quant.RecordFactors.f_full(row.record_factors.ratio, f_upper, input.params.record_bits);
            quant.decode(input.params, row.upper, row.lower, f_full, self.centers.at(row.center), self.levels, self.rows.items[i * self.dim ..][0..self.dim]);
            self.f_upper_max = @max(self.f_upper_max, f_upper);
        }
    }

    /// Leaves the code of a point in `code`.
    fn encode(self: *PageCodeMakers, point: []const f32) void {
        @memcpy(self.rotated, point);
        self.rotation.undo(self.rotated, self.turned_back);
        self.product.encode(self.scratch, self.turned_back, self.code);
    }
};
