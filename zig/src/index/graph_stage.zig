//! The stages of a build in one piece between encoding and writing: the graph over the 8-bit codes, and the placement of its
//! vertices on pages. Each goes on from what a killed build kept of it (resume.zig). A build in partitions takes from here
//! how one graph is asked for and one placement is made (partitions.zig).
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const option_room = @import("options.zig");
const resume_room = @import("resume.zig");
const writer = @import("writer.zig");
const Builder = @import("builder.zig").Builder;
const Former = @import("former.zig").Former;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

fn load_points(builder: *Builder, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!*quant.BuildCodes {
    if (codes.* == null) codes.* = builder.work_points.?.take();
    if (codes.* == null) {
        codes.* = try quant.BuildCodes.init(n, builder.params.dim);
        try builder.work_points.?.load(&codes.*.?, 0, 0, n, diagnostic);
    }
    return &codes.*.?;
}

pub fn make_graph(builder: *Builder, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!graph.Graph {
    builder.control.enter(.graph, n);
    var keeper: resume_room.GraphKeeper = .{
        .allocator = builder.allocator,
        .dir = builder.dir,
        .identity = builder.identity(),
        .diagnostic = diagnostic,
        .interval_us = if (builder.options.transient) std.math.maxInt(u64) else @as(u64, builder.options.checkpoint_ms) * std.time.us_per_ms,
        .last_us = base.nowMicros(),
    };
    if (try keeper.load_whole(n, builder.options.degree)) |built| return built;
    if (builder.former) |*former| if (has_room_for(builder, former)) {
        var built = try link_on(builder, former, n, codes, diagnostic);
        errdefer built.deinit(builder.allocator);
        if (!builder.options.transient) try keeper.save_whole(&built);
        return built;
    };
    var built = link(builder, try load_points(builder, n, codes, diagnostic), graph_options(builder, builder.options.seed), &keeper) catch |err| switch (err) {
        error.NotKept => return keeper.failure,
        else => |other| return graph_error(diagnostic, other),
    };
    errdefer built.deinit(builder.allocator);
    try builder.control.check();
    if (!builder.options.transient) try keeper.save_whole(&built);
    return built;
}

/// The graph of rows by what queries will compare.
fn link(builder: *Builder, points: *const quant.BuildCodes, options: graph.BuildOptions, keeper: *resume_room.GraphKeeper) (graph.Error || error{NotKept})!graph.Graph {
    if (builder.options.metric != .ip) return graph.build_kept(quant.BuildCodes, builder.allocator, points, options, keeper);
    return graph.build_kept(quant.ProductCodes, builder.allocator, &.of(points), options, keeper);
}

fn has_room_for(builder: *const Builder, former: *const Former) bool {
    const limit = builder.options.memory_bytes;
    return limit == 0 or option_room.memory_whole(builder.options, builder.params.dim) + former.memory_bytes(builder.options.degree) <= limit;
}

/// The lists are read before the points: what reading takes is given back by then.
fn link_on(builder: *Builder, former: *const Former, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!graph.Graph {
    var begun = try former.begin(builder.allocator, &builder.options, diagnostic);
    defer begun.deinit(builder.allocator);
    try builder.control.check();
    const points = try load_points(builder, n, codes, diagnostic);
    return go_on(builder, points, graph_options(builder, builder.options.seed), &begun) catch |err| graph_error(diagnostic, err);
}

/// The graph of rows that goes on from what has begun.
pub fn go_on(builder: *Builder, points: *const quant.BuildCodes, options: graph.BuildOptions, begun: *graph.Begun) graph.Error!graph.Graph {
    if (builder.options.metric != .ip) return graph.build_begun(quant.BuildCodes, builder.allocator, points, options, begun);
    return graph.build_begun(quant.ProductCodes, builder.allocator, &.of(points), options, begun);
}

pub fn graph_options(builder: *Builder, seed: u64) graph.BuildOptions {
    return .{
        .degree = builder.options.degree,
        .list_size = builder.options.build_list_size,
        .alpha = builder.options.alpha,
        .threads = builder.options.threads,
        .gives_way = builder.options.gives_way,
        .seed = seed,
        .progress = &builder.control.done,
        .cancel = &builder.control.canceled,
    };
}

pub fn make_placement(builder: *Builder, built: *const graph.Graph, page_bytes: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!resume_room.Placed {
    const allocator = builder.allocator;
    builder.control.enter(.place, built.n);
    if (try resume_room.load_placed(allocator, builder.dir, builder.identity(), built.n)) |placed| return placed;
    const points = try load_points(builder, built.n, codes, diagnostic);
    var placement = try place(builder, built, points, page_bytes, diagnostic);
    errdefer placement.deinit(allocator);
    const tau = try graph.affinity_threshold(quant.BuildCodes, allocator, points, built.n, builder.options.affinity_percent, builder.options.seed);
    const colors = try graph.color(quant.BuildCodes, allocator, points, &placement, tau);
    errdefer allocator.free(colors);
    const placed: resume_room.Placed = .{ .placement = placement, .colors = colors };
    if (!builder.options.transient) try resume_room.save_placed(allocator, builder.dir, builder.identity(), &placed, diagnostic);
    return placed;
}

/// A page is filled by what its records are thought to take. Lists are only known after placement, so the first
/// sizes come from experience, and a second placement knows better. Where a former index was placed, its order tells
/// them, and no first placement is made.
fn place(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, page_bytes: u32, diagnostic: *Diagnostic) Error!graph.Placement {
    const sizes = try base.alloc_untouched(builder.allocator, u16, built.n);
    defer base.free_untouched(builder.allocator, sizes);
    for (sizes, built.degrees) |*size, degree| size.* = size_guess(builder, degree);
    if (builder.options.page_links) {
        builder.control.enter(.place, built.n);
        const order = try draft_order(builder, built, points, page_bytes, sizes, diagnostic);
        defer base.free_untouched(builder.allocator, order);
        try writer.record_sizes(builder.allocator, .{ .graph = built }, built.degree_max, order, builder.page_geometry(), sizes, diagnostic);
    }
    builder.control.enter(.place, built.n);
    return place_with(builder, built, points, page_bytes, sizes, false, diagnostic);
}

fn draft_order(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, page_bytes: u32, sizes: []const u16, diagnostic: *Diagnostic) Error![]u32 {
    if (builder.former) |*former| return former.order(builder.allocator, built);
    const first = try place_with(builder, built, points, page_bytes, sizes, true, diagnostic);
    base.free_untouched(builder.allocator, first.page_first);
    return first.order;
}

/// What a record with so many neighbors takes of a page, by experience; exactly, where pages hold no lists.
pub fn size_guess(builder: *const Builder, degree: usize) u16 {
    const fixed = builder.page_geometry().record_bytes();
    if (!builder.options.page_links) return @intCast(fixed);
    const bits_per_edge = @max(6, 12.9 + 0.7 * (@log2(@as(f64, @floatFromInt(builder.options.n)) + 1) - @log2(1e6)));
    const list_bytes = 1.5 + bits_per_edge * @as(f64, @floatFromInt(degree)) / 8;
    return @intCast(fixed + @as(u32, @intFromFloat(@ceil(list_bytes))));
}

pub fn place_with(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, page_bytes: u32, sizes: []const u16, draft: bool, diagnostic: *Diagnostic) Error!graph.Placement {
    const options: graph.PlaceOptions = .{
        .page_bytes_budget = page_bytes - layout.page.header_bytes,
        .record_bytes = sizes,
        .draft = draft,
        .threads = builder.options.threads,
        .gives_way = builder.options.gives_way,
        .progress = &builder.control.done,
        .cancel = &builder.control.canceled,
    };
    const placed = if (builder.options.metric == .ip)
        graph.place(quant.DirectionCodes, builder.allocator, &.of(points), built, options)
    else
        graph.place(quant.BuildCodes, builder.allocator, points, built, options);
    return placed catch |err| graph_error(diagnostic, err);
}

pub fn graph_error(diagnostic: *Diagnostic, err: graph.Error) Error {
    return switch (err) {
        error.Canceled => error.Canceled,
        error.OutOfMemory => error.OutOfMemory,
        error.ThreadFailed => {
            diagnostic.say("the system refused to start a thread", .{});
            return error.OutOfMemory;
        },
    };
}
